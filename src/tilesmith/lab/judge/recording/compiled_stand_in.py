"""What `kernel.warmup` returns where there is no GPU: an object with the facts of a compiled kernel, which launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tilesmith.toolchain.interpreter import Launched

REGISTERS = 32  # a candidate computes a grid from these; any value gives right outputs


class CompiledStandIn:
    """Stands for `triton.compiler.CompiledKernel`. A launch goes through the @triton.jit function, as all do."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self.name = launched.kernel.__name__
        self.n_regs, self.n_spills, self.n_max_threads = REGISTERS, 0, 1024
        self.metadata = SimpleNamespace(
            name=self.name, shared=1024, num_warps=launched.options.get("num_warps") or 4,
            num_stages=launched.options.get("num_stages") or 2, num_ctas=1,
        )  # fmt: skip

    def _init_handles(self) -> None:
        """Do nothing: there is no module to load."""

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        kernel = self._launched.kernel
        constants = {one.name for one in kernel.params if one.is_constexpr}

        def launch(*arguments: Any, stream: Any = None) -> None:
            names = list(kernel.arg_names)
            if len(arguments) < len(names):  # earlier releases of Triton take no constants here
                names = [name for name in names if name not in constants]
            given = dict(zip(names, arguments, strict=True))
            fixed = {name: value for name, value in self._launched.arguments.items() if name in constants}
            kernel[tuple(grid)](**{**given, **fixed}, **self._launched.options)

        return launch
