"""A tape: the launches and PyTorch operators of one call, in order, as plain data.

A replay needs no more than the tape: which memory is an input, which is new, which held a constant before the call, and
what was done to it. Views leave no mark, because every tensor is written down as storage, offset, size and stride.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tilesmith.lab.judge.recording import plain_values
from tilesmith.lab.judge.recording.compiled_stand_in import CompiledStandIn
from tilesmith.lab.judge.recording.plain_values import NotPlain, Reference, dtype_name
from tilesmith.toolchain.configurations import Configurations
from tilesmith.toolchain.interpreter import KernelError, Launched, Observer, OutOfBounds, interpret
from tilesmith.toolchain.portable import Kernels, NotPortable
from tilesmith.toolchain.portable.tensor_cores import exact_products

MOST_STEPS = 20_000
EMPTY = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
HOST_READS = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"})


class TooLong(Exception):
    """The candidate does more on the device than a tape holds."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has no types here
    """Sees every PyTorch operator; as a performer of launches it sees every kernel."""

    def __init__(self, folder: str, *, perform: bool = True, configuration: int = 0, tf32: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.steps: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.host_reads: list[str] = []
        self._configurations = Configurations(configuration)
        self.kernels = Kernels()
        self._folder = folder
        self._perform = perform
        self._tf32 = tf32
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # a storage that is freed would give its address to another

    def add_input(self, tensor: torch.Tensor, name: str) -> None:
        """Note that a storage belongs to the task."""
        self._register(tensor, {"kind": "input", "name": name})

    def reference(self, tensor: torch.Tensor) -> Reference:
        """Return a tensor as storage, dtype, offset, size and stride. Unknown storages held their values before."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            number = self._register(tensor, {"kind": "constant"})
            self.constants[number] = bytes_of(tensor).clone()
        size, stride = list(tensor.size()), list(tensor.stride())
        return [number, dtype_name(tensor.dtype), tensor.storage_offset(), size, stride]

    def as_json(self) -> dict[str, Any]:
        return {
            "storages": self.storages,
            "steps": self.steps,
            "kernels": self.kernels.descriptions,
            "host_reads": self.host_reads[:16],
            "configurations": self._configurations.names(),
        }

    # PyTorch's operators

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and importing torch.compile's back end takes two seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            name = func.name()
            own = _function_of_custom_operator(func)
            if own is not None:  # its launches and operators count, not its name
                with self:
                    return own(*args, **kwargs)
            operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            if name.split(".")[0] in HOST_READS:
                self.host_reads.append(f"{name} at {self._line()}")
                return func(*args, **kwargs)
            known = {one.untyped_storage()._cdata for one in operands}
            encoded = self._encoded(args, kwargs) if func._schema.is_mutable or operands else None
            result = func(*args, **kwargs)
            results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
            new = [one for one in results if one.untyped_storage()._cdata not in known]
            if not new and not func._schema.is_mutable:
                return result  # a view
            for one in new:
                if one.untyped_storage()._cdata not in self._numbers:
                    self._register(one, {"kind": "new"})
            if name.split(".")[0] not in EMPTY:
                step = encoded if encoded is not None else self._encoded(args, kwargs)
                self._add({"operator": name, **step, "results": [self.reference(one) for one in results]})
            return result

    def _encoded(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return {
                "args": [plain_values.encode(one, self.reference) for one in args],
                "kwargs": {key: plain_values.encode(one, self.reference) for key, one in kwargs.items()},
            }
        except NotPlain as error:
            return {"args": [], "kwargs": {}, "opaque": str(error)}

    # Launches

    def launch(self, launched: Launched) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if launched.warmup:
                return CompiledStandIn(launched)
            self._note_launch(launched)
            if self._perform:
                kernel, grid, arguments = launched.kernel, launched.grid, launched.arguments
                programs: Any = _every_program(grid)
                # The replay reports a kernel that fails; the candidate goes on as it would on a GPU.
                with exact_products() if self._tf32 else nullcontext(), suppress(KernelError):
                    interpret(kernel, grid, arguments, _Lenient(), programs, launched.options)
            return None

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Any) -> Any:
        """Return one of an autotuner's configurations: times in the interpreter mean nothing."""
        return self._configurations.chosen(candidates, kernel)

    def _note_launch(self, launched: Launched) -> None:
        try:
            arguments = {name: self._argument(value) for name, value in launched.arguments.items()}
            options = {name: _plain_option(value) for name, value in launched.options.items() if value is not None}
            number = self.kernels.number(launched.kernel)
        except (NotPortable, OSError, SyntaxError) as error:
            self._add({"opaque": f"kernel {launched.kernel.__name__} uses {error}"})
            return
        step = {"kernel": number, "grid": list(launched.grid), "arguments": arguments, "options": options}
        self._add({**step, "tuned": _tuned(launched.tuner)} if launched.tuner is not None else step)

    def _argument(self, value: Any) -> Any:
        return self.kernels.encode(value, self.reference)

    def _add(self, step: dict[str, Any]) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise TooLong(f"more than {MOST_STEPS:,} launches and operators in one call")
        self.steps.append({**step, "line": self._line()})

    def _register(self, tensor: torch.Tensor, description: dict[str, Any]) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        self._numbers[storage._cdata] = len(self.storages)
        self.storages.append({**description, "bytes": storage.nbytes()})
        return len(self.storages) - 1

    def _line(self) -> str:
        """Return the innermost line of the candidate's files."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self._folder):
                return f"{file[len(self._folder) :].lstrip('/')}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


class Ignored:
    """Takes launches, and neither notes nor performs them."""

    def launch(self, launched: Launched) -> Any:
        return CompiledStandIn(launched) if launched.warmup else None

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Any) -> Any:
        return candidates[0]


def _function_of_custom_operator(func: Any) -> Any:
    """Return the function behind `torch.library.custom_op` or `triton_op`; None for other operators."""
    if func.namespace in ("aten", "prims"):
        return None
    found = getattr(sys.modules.get("torch._library.custom_ops"), "_maybe_get_opdef", lambda one: None)(func)
    return getattr(found, "_init_fn", None)


def _tuned(tuner: Any) -> dict[str, list[str]] | None:
    """Return which arguments an autotuner resets and restores around its trials; None where it makes none.

    Hooks of the user may do the same in their own way.
    """
    hooks = [getattr(tuner, "user_defined_pre_hook", False), *(one.pre_hook for one in tuner.configs)]
    if len(tuner.configs) < 2 or any(hooks):
        return None
    return {name: [str(one) for one in getattr(tuner, name, None) or ()] for name in ("reset_to_zero", "restore_value")}


def _plain_option(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else type(value).__name__


class _Lenient(Observer):
    """Lets a launch go on after an access out of bounds; the replay reports it."""

    def out_of_bounds(self, error: OutOfBounds) -> None:
        pass


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _every_program(grid: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return ((x, y, z) for z, y, x in product(*map(range, reversed(tuple(grid)))))
