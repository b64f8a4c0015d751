"""One call of the learner's function in the interpreter.

The trace holds the accesses of its kernels, its calls of PyTorch, and the values that kernels stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tilesmith.lab.inspect import inspection_of, watching
from tilesmith.lab.inspect.model import Inspection, Kernel
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.session import Session
from tilesmith.spec import Inputs, called
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Target
from tilesmith.toolchain.interpreter import Access, Observer, OutOfBounds, interpreting
from tilesmith.toolchain.interpreter.running import Launched

SECONDS_TO_TRACE = 60.0  # enough for all programs: the sizes of exercises are small

# PyTorch calls that a launch needs: allocation, shapes and strides, views and copies.
NO_ARITHMETIC = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros"),
        *("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "zero_", "fill_", "arange", "tensor"),
        *("size", "stride", "dim", "ndimension", "numel", "nelement", "__len__", "storage_offset", "element_size"),
        *("data_ptr", "untyped_storage", "get_device", "is_contiguous", "is_floating_point", "is_complex"),
        *("detach", "requires_grad_", "__hash__", "__repr__", "__format__", "__get__", "__set__", "__getitem__"),
        *("view", "view_as", "reshape", "flatten", "ravel", "permute", "transpose", "t", "movedim", "swapaxes"),
        *("expand", "expand_as", "as_strided", "unsqueeze", "squeeze", "unflatten", "narrow", "select", "chunk"),
        *("split", "unbind", "contiguous", "clone", "copy_", "to", "float", "half", "bfloat16", "double", "type"),
        *("cpu", "cuda", "device", "broadcast_tensors", "result_type"),
    }
)


@dataclass(frozen=True)
class TorchCall:
    """Arithmetic that PyTorch did, and the line of the learner's file that called PyTorch.

    `forbidden`: the function computes nothing, but this exercise forbids it.
    """

    name: str
    line: int
    forbidden: bool = False


class _TorchCalls(TorchFunctionMode):
    """Records PyTorch calls of the learner's file that compute something or that the exercise forbids."""

    def __init__(self, file: Path, allow: Sequence[str], forbid: Sequence[str]) -> None:
        super().__init__()
        self._file = str(file)
        self._allowed, self._forbidden = NO_ARITHMETIC | set(allow), set(forbid)
        self.found: list[TorchCall] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        forbidden = func.__name__ in self._forbidden
        if forbidden or func.__name__ not in self._allowed:
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != self._file and frame.f_back is not None:
                frame = frame.f_back
            if frame.f_code.co_filename == self._file:
                self.found.append(TorchCall(func.__name__.strip("_"), frame.f_lineno, forbidden))
        return func(*args, **(kwargs or {}))


class StoredValues(Observer):
    """Records every store of the kernels: addresses and values."""

    def __init__(self) -> None:
        self._stores: list[Access] = []

    def store(self, access: Access) -> None:
        self._stores.append(access)

    def atomic(self, access: Access) -> None:
        self._stores.append(access)

    def out_of_bounds(self, error: OutOfBounds) -> None:
        """Continue: the sanitizer reports the access."""

    def unwritten(self, tensor: Tensor) -> NDArray[np.int64]:
        """Return the indices of elements whose value no kernel stored, one row per element."""
        if not tensor.numel():
            return np.empty((0, tensor.ndim), dtype=np.int64)
        indices = np.indices(tuple(tensor.shape)).reshape(tensor.ndim, tensor.numel())
        addresses = _addresses(tensor, indices)
        found = tensor.detach().double().cpu().numpy().reshape(-1)
        left = np.zeros(addresses.size, dtype=bool)
        for access in self._stores:
            mine = access.addresses[access.mask].astype(np.int64)
            reached = np.isin(addresses, mine)
            if access.kind == "atomic" or access.value is None:
                left |= reached
                continue
            values = np.broadcast_to(access.value, access.mask.shape)[access.mask].astype(np.float64)
            order = np.argsort(mine, kind="stable")
            places = np.searchsorted(mine[order], addresses[reached], side="right") - 1
            stored = values[order][places]
            now = found[reached]
            left[reached] = (stored == now) | ((stored != stored) & (now != now))
        return np.asarray(indices[:, ~left].T, dtype=np.int64)

    def masked_off(self, tensor: Tensor, elements: NDArray[np.int64]) -> Access | None:
        """Return a store whose mask keeps it from the first of these elements; None unless masks explain them all.

        A lane beyond the end of one row has the address of the next row, so a single element proves nothing.
        """
        wanted = _addresses(tensor, elements.T)
        off = [access.addresses[~access.mask].astype(np.int64) for access in self._stores]
        if not off or not np.isin(wanted, np.concatenate(off)).all():
            return None
        return next(access for access, mine in zip(self._stores, off, strict=True) if wanted[0] in mine)


def _addresses(tensor: Tensor, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the addresses of elements, whose indices are columns."""
    strides = np.array(tensor.stride(), dtype=np.int64).reshape(-1, 1)
    return np.asarray(tensor.data_ptr() + (indices * strides).sum(axis=0) * tensor.element_size(), dtype=np.int64)


@dataclass(frozen=True)
class Tuned:
    """What an autotuner was called for: the kernel, its numbers by name, and the dtypes of its tensors."""

    kernel: Any
    sizes: Mapping[str, float]
    dtypes: tuple[str, ...]


@dataclass
class _Session(Session):
    """A session that also counts all launches, and records empty grids and an autotuner's configurations."""

    candidates: tuple[Any, ...] = ()
    tuned: Tuned | None = None
    empty_grid: tuple[str, tuple[int, int, int]] | None = None
    launched: int = 0
    programs: int = 0

    def launch(self, launched: Launched) -> Any:
        if not launched.warmup:
            self.launched += 1
            self.programs += prod(launched.grid)
        if 0 in launched.grid:
            self.empty_grid = launched.kernel.__name__, launched.grid
        return super().launch(launched)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        self.candidates = tuple(candidates)
        dtypes = tuple(str(one.dtype) for one in arguments.values() if isinstance(one, Tensor))
        sizes = {name: one for name, one in arguments.items() if isinstance(one, int | float)}
        self.tuned = Tuned(kernel, sizes, dtypes)
        return super().configuration(candidates, kernel, arguments)


@dataclass
class TracedCall:
    """The trace of one call.

    `launches` and `programs` count all launches; `kernels` has the trace of the first sizes of each kernel.
    `candidates` are the configurations of an autotuner, if there is one. `empty_grid` is the kernel and the grid of a
    launch without programs.
    """

    inspection: Inspection | None = None
    launches: int = 0
    programs: int = 0
    candidates: tuple[Any, ...] = ()
    tuned: Tuned | None = None
    empty_grid: tuple[str, tuple[int, int, int]] | None = None
    outputs: list[Tensor] = field(default_factory=list)
    returned: Any = None
    error: BaseException | None = None
    torch_calls: tuple[TorchCall, ...] = ()
    stored: StoredValues = field(default_factory=StoredValues)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.inspection.kernels if self.inspection is not None else ()


def trace_call(
    function: Callable[..., Any],
    inputs: Inputs,
    file: Path,
    allow: Sequence[str] = (),
    forbid: Sequence[str] = (),
    targets: Sequence[Target] = DEFAULT_TARGETS,
    candidate: int | None = None,
) -> TracedCall:
    """Call the function in the interpreter, record the trace, and compile its kernels for the targets.

    With one target alone, the trace does not explain narrow accesses: that takes several compilations.
    `candidate` is the index of the autotuner's configuration to use. Default: the first configuration that can run.
    """
    config = None if candidate is None else str(candidate)
    options = InspectOptions(
        tuple(targets), asked=True, seconds=SECONDS_TO_TRACE, config=config, alignment=len(targets) > 1
    )
    session = _Session(options, has_gpu=False)
    calls = _TorchCalls(file, allow, forbid)
    call = TracedCall()
    try:
        with interpreting(call.stored), watching(session), calls:
            call.returned = called(function, inputs)
            with torch._C.DisableTorchFunction():
                session.run_deferred()
    except BaseException as error:
        call.error = error
    call.inspection = inspection_of(session, script=file.name)
    call.launches, call.programs = session.launched, session.programs
    call.candidates, call.tuned, call.empty_grid = session.candidates, session.tuned, session.empty_grid
    call.torch_calls = tuple(calls.found)
    returned = call.returned if isinstance(call.returned, list | tuple) else [call.returned]
    call.outputs = [one for one in returned if isinstance(one, Tensor)]
    return call
