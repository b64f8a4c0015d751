"""The table that an exercise asks for: a constant of the learner's file, set to one value after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tilesmith.workshop.exercise import Goal, Size, Sweep
from tilesmith.workshop.goals import measure
from tilesmith.workshop.verdict import Table

if TYPE_CHECKING:
    from tilesmith.workshop.stages import Check


def filled(check: Check, sweep: Sweep, timed: Size | None) -> Table:
    """What each value comes to, from the trace and the binary, and measured where there is a GPU; nothing where the
    file has no such constant."""
    constants = getattr(check.spec.op, "__globals__", {})
    if sweep.constant not in constants:
        return []
    timed = timed if torch.cuda.is_available() else None
    heads = [sweep.constant, *sweep.columns, *([f"µs, measured on {_sizes(timed)}"] if timed else [])]
    return [heads, *(_row(check, sweep, constants, value, timed) for value in sweep.values)]


def _row(check: Check, sweep: Sweep, constants: dict[str, Any], value: int, timed: Size | None) -> list[str]:
    with _changed(constants, {sweep.constant: value}):
        made = check.measured(anew=True)
        found = [f"{measure(Goal(column, ''), made).value:.4g}" for column in sweep.columns]
        return [str(value), *found, *([_time(check, timed)] if timed else [])]


def _time(check: Check, size: Size) -> str:
    from tilesmith.workshop.speed import device_us

    microseconds = device_us(check.spec, size)
    return "–" if microseconds is None else f"{microseconds:.1f}"


@contextmanager
def _changed(constants: dict[str, Any], to: Mapping[str, int]) -> Iterator[None]:
    before = {name: constants[name] for name in to}
    constants.update(to)
    try:
        yield
    finally:
        constants.update(before)


def _sizes(size: Size) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in size.sizes.items())
