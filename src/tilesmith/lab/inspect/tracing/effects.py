"""What a traced launch writes, which programs it has, and which of them were traced, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.tracing.trace import Trace, sample
from tilesmith.toolchain.interpreter import Launched


@dataclass(frozen=True)
class Effects:
    """The arguments that the traced programs of a kernel write, by name; None if unknown."""

    written: frozenset[str] | None = None
    only_floats: bool = False
    reaches_others: bool = False

    @classmethod
    def of(cls, trace: Trace) -> Effects:
        """Return the effects of the traced programs."""
        tensors = trace.shadows.tensors
        written = {place.argument for place in trace.sites if place.kind != "load" and place.argument in tensors}
        floats = all(tensors[name].is_floating_point() for name in written if name)
        parameters = frozenset(name.partition("[")[0] for name in written if name)  # a tuple is one parameter
        return cls(parameters, floats, trace.reaches_others)

    @classmethod
    def unknown(cls, tensors: Iterable[torch.Tensor]) -> Effects:
        """Return the effects of a launch on these tensors of which no program was traced."""
        return cls(only_floats=all(tensor.is_floating_point() for tensor in tensors))


def every_program(grid: Program) -> Iterator[Program]:
    """Yield the programs of a grid in the order of their numbers."""
    # Nested ranges: itertools.product would hold every number of each axis in memory.
    return ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))


def first_programs(launched: Launched, most: int) -> list[Program]:
    """Return the programs to trace first: a sample of the grid; in order where programs may wait for earlier ones."""
    return list(islice(every_program(launched.grid), most)) if _polls(launched) else sample(launched.grid, most)


def _polls(launched: Launched) -> bool:
    """Return whether the kernel, or a function that it names, has a loop that may read memory until it changes."""
    kernel = launched.kernel
    texts = ["".join(kernel.raw_src)]
    texts += [
        "".join(value.raw_src)
        for name, value in kernel.fn.__globals__.items()
        if name in texts[0] and value is not kernel and hasattr(value, "raw_src")
    ]
    return any("while " in text and ("atomic" in text or "volatile" in text) for text in texts)


def sampled_in_words(traced: int, launched: Launched, covered: str) -> str:
    """Return which programs were traced."""
    programs = prod(launched.grid)
    if traced == programs:
        return "all programs"
    spread = "first, last, corners of the grid, and others between"
    which = "the first ones, since later ones may wait for them" if _polls(launched) else spread
    what = f"; {covered}" if covered else ""
    return f"{traced:,} of {programs:,} programs ({which}{what})"
