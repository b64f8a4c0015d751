"""Launching a compiled kernel for the second time costs one C call.

Triton's own launch works out at every call what kind of argument each one is, which compiled variant that selects, and
whether a global changed: 11.8 µs of host time on an H200's host. Here all of it is done once, and a replay fills in the
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import torch
from triton import knobs

from tilesmith.toolchain.versions import triton_version


class Pointer(Protocol):
    """Stands for a tensor whose address is known at the launch only; `slot` says which address that will be."""

    slot: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """Zero where the address will be a multiple of 16 bytes, else one: all that compilation depends on."""


Grid = tuple[int, int, int]


listeners: list[Callable[[Launch], None]] = []
"""Told of every launch: whoever collects launches cannot see those that no longer pass through Triton."""


class Launch:
    """One kernel on one grid with fixed arguments but for its addresses."""

    __slots__ = ("_filled", "_start", "compiled", "constants", "grid", "kernel")

    def __init__(self, kernel: Any, grid: Grid, arguments: Mapping[str, object], options: Mapping[str, Any]) -> None:
        """Compiles for the current device, or takes what Triton has compiled before."""
        compiled = kernel.run(grid=grid, warmup=True, **arguments, **options)
        self.compiled = compiled.result() if hasattr(compiled, "result") else compiled
        self.kernel = kernel
        self.grid = grid
        self.constants = {one.name: arguments[one.name] for one in kernel.params if one.is_constexpr}
        self._filled = _filler([arguments[name] for name in kernel.arg_names])
        self._start = _starter(self.compiled, grid)

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        for listener in listeners:
            listener(self)
        hook = knobs.runtime.launch_enter_hook
        if hook is None or not getattr(hook, "calls", True):  # a chain of hooks may be empty
            self._start(stream, self._filled(addresses))
        else:  # a profiler listens
            self.compiled[self.grid](*self._filled(addresses), stream=stream)


def _filler(arguments: Sequence[Any]) -> Callable[[Sequence[int]], Sequence[Any]]:
    """A function that puts the addresses of a call where the pointers are."""
    places = {place: value.slot for place, value in enumerate(arguments) if hasattr(value, "slot")}
    leading = len(places)
    if leading > 1 and max(places) == leading - 1:  # pointers stand first: one slice instead of a loop
        pick, rest = itemgetter(*places.values()), tuple(arguments[leading:])
        return lambda addresses: pick(addresses) + rest

    def filled(addresses: Sequence[int]) -> Sequence[Any]:
        copy = list(arguments)
        for place, slot in places.items():
            copy[place] = addresses[slot]
        return copy

    return filled


def _starter(compiled: Any, grid: Grid) -> Callable[[int, Sequence[Any]], None]:
    """The shortest way to start a compiled kernel."""
    run = compiled.run  # loads the binary onto the device
    function, metadata = compiled.function, compiled.packed_metadata
    if triton_version() == (3, 6) and type(run).__name__ == "CudaLauncher" and not needs_scratch(compiled.metadata):
        # 5.6 µs instead of 6.9 on an H200's host: Triton's own wrapper looks at every call whether memory is needed.
        launch, cooperative, dependent = run.launch, run.launch_cooperative_grid, run.launch_pdl
        return lambda stream, arguments: launch(
            *grid, stream, function, cooperative, dependent, None, None, metadata, None, None, None, *arguments
        )
    return lambda stream, arguments: run(*grid, stream, function, metadata, None, None, None, *arguments)


def needs_scratch(metadata: Any) -> bool:
    """Whether a launch has to bring memory for the compiler's own use."""
    return bool(metadata.global_scratch_size or metadata.profile_scratch_size)
