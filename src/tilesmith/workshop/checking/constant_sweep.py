"""The table of an exercise: the learner's file is traced once for every value of one of its constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tilesmith.spec import Spec
from tilesmith.workshop.checking.goals import measure
from tilesmith.workshop.checking.traced_call import TracedCall
from tilesmith.workshop.checking.verdict import Table
from tilesmith.workshop.course.exercise import Goal, Size, Sweep


def sweep_table(spec: Spec, measured: Callable[[], TracedCall], sweep: Sweep, timed: Size | None) -> Table:
    """Return one row per value, with a column of times where there is a GPU.

    `measured` traces the learner's file anew. The table is empty if the file has no such constant.
    """
    timed = timed if torch.cuda.is_available() else None
    heads = [sweep.constant, *sweep.columns, *([f"µs, measured on {_sizes(timed)}"] if timed else [])]
    rows = [_row(spec, measured(), sweep, value, timed) for value in each_value(spec, sweep, sweep.values)]
    return [heads, *rows] if rows else []


def each_value(spec: Spec, sweep: Sweep, values: Iterable[int]) -> Iterator[int]:
    """Set the constant of the learner's file to one value after the other; to none if there is no such constant."""
    constants = getattr(spec.op, "__globals__", {})
    for value in values if sweep.constant in constants else ():
        with _changed(constants, {sweep.constant: value}):
            yield value


def _row(spec: Spec, call: TracedCall, sweep: Sweep, value: int, timed: Size | None) -> list[str]:
    found = [f"{measure(Goal(column, ''), call).value:.4g}" for column in sweep.columns]
    return [str(value), *found, *([_time(spec, timed)] if timed else [])]


def _time(spec: Spec, size: Size) -> str:
    from tilesmith.workshop.checking.gpu_timing import device_microseconds

    microseconds = device_microseconds(spec, size)
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
