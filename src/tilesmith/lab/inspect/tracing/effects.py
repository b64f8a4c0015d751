"""What a traced launch writes, which programs it has, and which of them were traced, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.tracing.trace import Trace


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
    return ((x, y, z) for z, y, x in product(*map(range, reversed(grid))))


def sampled_in_words(traced: int, programs: int, covered: str) -> str:
    """Return which programs were traced."""
    if traced == programs:
        return "all programs"
    what = f"; {covered}" if covered else ""
    return f"{traced:,} of {programs:,} programs (first, last, corners of the grid, and others between{what})"
