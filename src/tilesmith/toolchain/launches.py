"""Record what a program launches on the GPU: kernels, compile-time constants, registers, spills and shared memory.

Launches reach a GPU in two ways: through Triton's `JITFunction.run`, which is replaced while a recording lasts, and
through `launcher.py`, which launches a compiled kernel again without it and tells its `listeners`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner as Autotuner  # for the rooms above, which import no internals
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.cache_folder import require_writable_cache
from tilesmith.toolchain.launcher import Launch, listeners


@dataclass(frozen=True)
class SeenLaunch:
    """One kernel variant that was compiled or launched. Facts of the binary are None until a GPU has loaded it."""

    kernel: str
    grid: tuple[int, ...] | None  # None where the grid is a function of the constants
    constants: dict[str, Any]
    _compiled: Any = field(repr=False, compare=False)

    @property
    def num_warps(self) -> int:
        return int(self._compiled.metadata.num_warps)

    @property
    def num_stages(self) -> int | None:
        return getattr(self._compiled.metadata, "num_stages", None)

    @property
    def shared_bytes(self) -> int:
        return int(self._compiled.metadata.shared)

    @property
    def registers(self) -> int | None:
        return getattr(self._compiled, "n_regs", None)

    @property
    def spill_bytes(self) -> int | None:
        """Return the register spills of a thread in bytes; Triton counts words of four bytes."""
        words = getattr(self._compiled, "n_spills", None)
        return None if words is None else 4 * words


@contextmanager
def seen_launches() -> Iterator[list[SeenLaunch]]:
    """Collect every kernel variant that is launched inside the context, each once."""
    require_writable_cache()
    seen: list[SeenLaunch] = []
    stock = JITFunction.run

    def note(launch: SeenLaunch) -> None:
        if launch not in seen:
            seen.append(launch)

    def by_launcher(launch: Launch) -> None:
        note(SeenLaunch(launch.kernel.__name__, launch.grid, launch.constants, launch.compiled))

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = stock(kernel, *arguments, grid=grid, warmup=warmup, **options)
        finished = compiled.result() if hasattr(compiled, "result") else compiled
        if finished is not None:
            fixed_grid = tuple(grid) if isinstance(grid, Sequence) else None
            note(SeenLaunch(kernel.__name__, fixed_grid, _constants(kernel, arguments, options), finished))
        return compiled

    JITFunction.run = run
    listeners.append(by_launcher)
    try:
        yield seen
    finally:
        JITFunction.run = stock
        listeners.remove(by_launcher)


def _constants(kernel: Any, arguments: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **options}
    constant = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
    return {name: given[name] for name in constant if name in given}
