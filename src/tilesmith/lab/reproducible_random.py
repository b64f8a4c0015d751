"""Random numbers that are the same on every machine.

`torch.manual_seed` is not enough: `torch.randn` uses other formulas with other vector widths, and a GPU has its own
generator. Inside `reproducible_random()` the random functions of PyTorch give the same numbers for the same seed on
every CPU and GPU; large tensors on a GPU excepted, where a CPU's numbers would take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE_ON_GPU = 1 << 20  # elements


class reproducible_random(TorchFunctionMode):  # used as a context manager, like torch.no_grad
    """Replace the random functions of PyTorch within a `with` block. Generators and seeds work as usual."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replacement = REPLACEMENTS.get(func, func)
        return replacement(*args, **(kwargs or {}))


def _normal(tensor: Tensor, generator: Any, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill a tensor with numbers of a generator that the next number of PyTorch's generator seeds."""
    if tensor.device.type == "meta":
        return tensor
    source = generator if generator is not None and generator.device.type == "cpu" else None
    seed = int(torch.randint(2**62, (), generator=source))
    with torch.no_grad():
        if tensor.is_cuda and tensor.numel() > LARGE_ON_GPU:
            return tensor.normal_(mean, std, generator=torch.Generator(tensor.device).manual_seed(seed))
        made = np.random.Generator(np.random.Philox(seed)).standard_normal(tensor.numel())
        return tensor.copy_(torch.from_numpy(mean + std * made).view(tensor.shape))


def _randn(*size: Any, generator: Any = None, **options: Any) -> Tensor:
    return _normal(torch.empty(*size, **options), generator)


def _randn_like(tensor: Tensor, **options: Any) -> Tensor:
    return _normal(torch.empty_like(tensor, **options), None)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return _normal(tensor, generator, mean, std)


def _on_the_cpu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function with its numbers made on the CPU: there they follow from integers alone."""

    def made(*args: Any, device: Any = None, generator: Any = None, **options: Any) -> Tensor:
        if device is not None and torch.device(device).type in ("cpu", "meta"):
            return function(*args, device=device, generator=generator, **options)
        source = generator if generator is not None and generator.device.type == "cpu" else None
        numbers = function(*args, generator=source, device="cpu", **options)
        return numbers.to(device or torch.get_default_device())

    return made


def _rand_like(tensor: Tensor, **options: Any) -> Tensor:
    like = torch.empty_like(tensor, **options)
    return like if like.device.type == "meta" else like.copy_(torch.rand(like.shape, dtype=like.dtype))


REPLACEMENTS: dict[Any, Callable[..., Tensor]] = {
    torch.randn: _randn,
    torch.randn_like: _randn_like,
    torch.Tensor.normal_: _normal_,
    torch.rand: _on_the_cpu(torch.rand),
    torch.rand_like: _rand_like,
    torch.randint: _on_the_cpu(torch.randint),
    torch.randperm: _on_the_cpu(torch.randperm),
}
