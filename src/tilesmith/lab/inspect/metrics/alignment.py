"""Accesses that are narrow because an argument is not aligned: which argument, and how wide they could be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilesmith.lab.inspect.metrics.compiled_targets import compiled_or_error, widest_by_line
from tilesmith.toolchain.compiler import Binary, Target
from tilesmith.toolchain.interpreter import Launched

ALIGNMENT = 16  # bytes of an address, or the divisor of an integer, from which the compiler derives wide accesses
MOST_SUSPECTS = 6  # arguments; each costs one compilation


@dataclass(frozen=True)
class Alignment:
    """Widths of global accesses by source line if all arguments were aligned, and the arguments that make them narrow.

    `causes` names, for each line, the arguments with their values as text. Both are empty where alignment changes
    nothing.
    """

    widths_if_aligned: dict[int, int]
    causes: dict[int, dict[str, str]]


def alignment_of(launched: Launched, binary: Binary, target: Target, file: str) -> Alignment:
    """Compile the launch with aligned arguments and compare the widths with those of `binary`."""
    suspects = unaligned(launched)
    if not suspects:
        return Alignment({}, {})

    def widths(changed: Launched) -> dict[int, int]:
        compiled = compiled_or_error(changed, target)
        return widest_by_line(compiled, file) if isinstance(compiled, Binary) else {}

    best = widths(aligned(launched))
    current = widest_by_line(binary, file)
    if not any(width > current.get(line, width) for line, width in best.items()):
        return Alignment({}, {})
    return Alignment(best, _causes(launched, suspects, best, widths))


def _causes(
    launched: Launched, suspects: dict[str, str], best: dict[int, int], widths: Callable[[Launched], dict[int, int]]
) -> dict[int, dict[str, str]]:
    """Return for each line the suspects that alone make its access narrow; all suspects where none does alone."""
    if not 1 < len(suspects) <= MOST_SUSPECTS:
        return dict.fromkeys(best, suspects)
    without = {name: widths(aligned(launched, but=name)) for name in suspects}
    causes = {}
    for line, width in best.items():
        alone = {name: suspects[name] for name, found in without.items() if found.get(line, width) < width}
        causes[line] = alone or suspects
    return causes


def unaligned(launched: Launched) -> dict[str, str]:
    """Return the arguments that are not multiples of 16, with their values as text."""
    found = {}
    for parameter in launched.kernel.params:
        value = launched.arguments[parameter.name]
        if parameter.is_constexpr or isinstance(value, bool):
            continue
        if isinstance(value, torch.Tensor) and value.data_ptr() % ALIGNMENT:
            found[parameter.name] = f"starts {value.data_ptr() % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"
        elif isinstance(value, int) and value > 1 and value % ALIGNMENT:
            found[parameter.name] = f"{value}"
    return found


def aligned(launched: Launched, but: str | None = None) -> Launched:
    """Return the launch with all integers and addresses, except `but`, rounded up to multiples of 16."""
    changed: dict[str, Any] = {}
    for name in unaligned(launched):
        if name == but:
            continue
        value = launched.arguments[name]
        changed[name] = -(-value // ALIGNMENT) * ALIGNMENT if isinstance(value, int) else _AlignedTensor(value.dtype)
    return replace(launched, arguments={**launched.arguments, **changed})


@dataclass(frozen=True)
class _AlignedTensor:
    """Stands for a tensor at address 0 when the compiler asks for the alignment."""

    dtype: torch.dtype

    def data_ptr(self) -> int:
        return 0
