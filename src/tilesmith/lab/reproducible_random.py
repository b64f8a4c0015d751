"""Random numbers that are the same on every machine.

`torch.manual_seed` is not enough: `torch.randn` uses other formulas with other vector widths, and a GPU has its own
generator. Inside `reproducible_random()` the random functions of PyTorch give the same numbers for the same seed on
every CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class reproducible_random(TorchFunctionMode):  # used as a context manager, like torch.no_grad
    """Replace the random functions of PyTorch within a `with` block. Generators and seeds work as usual."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replacement = REPLACEMENTS.get(func, func)
        return replacement(*args, **(kwargs or {}))


def _filled(tensor: Tensor, numbers: Callable[[np.random.Generator, int], Any], generator: Any) -> Tensor:
    """Fill a tensor with numbers of a generator that the next number of PyTorch's generator seeds."""
    if tensor.device.type == "meta":
        return tensor
    source = generator if generator is not None and generator.device.type == "cpu" else None
    seed = int(torch.randint(2**62, (), generator=source))
    made = numbers(np.random.Generator(np.random.Philox(seed)), tensor.numel())
    with torch.no_grad():
        return tensor.copy_(torch.from_numpy(made).view(tensor.shape))


def _normal(random: np.random.Generator, count: int) -> Any:
    return random.standard_normal(count)


def _randn(*size: Any, generator: Any = None, **options: Any) -> Tensor:
    return _filled(torch.empty(*size, **options), _normal, generator)


def _randn_like(tensor: Tensor, **options: Any) -> Tensor:
    return _filled(torch.empty_like(tensor, **options), _normal, None)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return _filled(tensor, lambda random, count: mean + std * random.standard_normal(count), generator)


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
