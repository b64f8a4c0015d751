"""What shows on a GPU alone, found on any machine: programs that measure, and tensors allocated on the CPU.

`PretendedGpu` has its own clock. As on a real GPU, a launch returns before its work is done, the work of a stream runs
in order, and events carry the GPU's time. The times are given, so a measurement is right or wrong, and never depends on
the machine's load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tilesmith.spec import Inputs, called
from tilesmith.toolchain.interpreter import Launched, handing_over
from tilesmith.toolchain.interpreter.host import tensors_in

LAUNCH_MS = 0.01


class PretendedGpu:
    """A host clock and the time at which the GPU will have done all work so far, in milliseconds."""

    def __init__(self) -> None:
        self.host = 0.0
        self.done_at = 0.0
        self.waits = 0
        self.events = 0

    def launch(self, milliseconds: float) -> None:
        """Queue work of this length."""
        self.host += LAUNCH_MS
        self.done_at = max(self.host, self.done_at) + milliseconds

    def synchronize(self, device: Any = None) -> None:
        """Let the host wait until all work is done."""
        self.waits += 1
        self.host = max(self.host, self.done_at)

    @contextmanager
    def in_torch(self) -> Iterator[PretendedGpu]:
        """Let `torch.cuda.Event` and `torch.cuda.synchronize` be those of this GPU."""

        def event(enable_timing: bool = False, **others: Any) -> _Event:
            return _Event(self, enable_timing)

        with (
            mock.patch.object(torch.cuda, "Event", event),
            mock.patch.object(torch.cuda, "synchronize", self.synchronize),
        ):
            yield self


class _Event:
    def __init__(self, gpu: PretendedGpu, timing: bool) -> None:
        self._gpu, self._timing = gpu, timing
        self._at: float | None = None
        gpu.events += 1

    def record(self, stream: Any = None) -> None:
        self._at = max(self._gpu.host, self._gpu.done_at)

    def query(self) -> bool:
        return self._at is None or self._at <= self._gpu.host

    def synchronize(self) -> None:
        self._gpu.waits += 1
        self._gpu.host = max(self._gpu.host, self._at or 0.0)

    def elapsed_time(self, end: _Event) -> float:
        """Return the milliseconds from this event to another. Raises the errors of torch.cuda.Event."""
        if not (self._timing and end._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end._at - self._at


def tensor_left_on_cpu(function: Callable[..., Any], inputs: Inputs) -> str | None:
    """Return the name of a tensor that is on the CPU where the inputs are not: an argument of a launch, or the result.

    The inputs are on PyTorch's meta device, and no kernel runs. A function that names the CPU itself, as for machines
    without a GPU, is not judged, nor is what follows an error.
    """
    launches, named = _Devices(), _NamedCpu()
    with suppress(Exception), handing_over(launches), named:
        outputs = _outputs(function, inputs)
        launches.on_cpu += ["the result" for one in outputs if one.is_cpu]
        torch.autograd.backward([one.sum() for one in outputs if one.requires_grad])
    return None if named.found else next(iter(launches.on_cpu), None)


def dtypes_of_results(function: Callable[..., Any], inputs: Inputs) -> list[torch.dtype]:
    """Return the dtypes of the results without running kernels; none where the function fails on the meta device."""
    with suppress(Exception), handing_over(_Devices()):
        return [one.dtype for one in _outputs(function, inputs)]
    return []


def _outputs(function: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    """Return the results for inputs of this kind on the meta device."""
    made = called(function, tree_map_only(Tensor, _on_meta, inputs))
    return [one for one in tree_leaves(made) if isinstance(one, Tensor)]


def _on_meta(tensor: Tensor) -> Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


class _Devices:
    """Takes over launches, runs none, and names their arguments that are on the CPU."""

    def __init__(self) -> None:
        self.on_cpu: list[str] = []

    def launch(self, launched: Launched) -> None:
        kernel = launched.kernel.__name__
        self.on_cpu += [f"{name} of {kernel}" for name, one in tensors_in(launched.arguments) if one.is_cpu]

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


class _NamedCpu(TorchFunctionMode):
    """Records whether a call of PyTorch names the CPU as a device."""

    found = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [*args, *(kwargs or {}).values()]
        self.found |= any(str(one) == "cpu" for one in given if isinstance(one, str | torch.device))
        return func(*args, **(kwargs or {}))
