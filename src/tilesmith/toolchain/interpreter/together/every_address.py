"""The accesses of all programs of a grid, in batches. Slices of the grid bound the memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.observing.observers import Program
from tilesmith.toolchain.interpreter.together.all_programs import (
    CannotFollow,
    Evaluation,
    PathRecorder,
    Recorded,
    program_of,
    same_path,
)

Array = NDArray[Any]
MOST_ELEMENTS = 1 << 21  # of one evaluated block, over all programs of a batch
MOST_PROGRAMS = 1 << 20  # whose branches are evaluated at once
FEW_PATHS = 16  # through a kernel: with so few, the number of programs is what takes long


@dataclass
class Batch:
    """One access of several programs: addresses and mask have one row for each program."""

    kind: str
    argument: str | None
    element_bytes: int
    programs: NDArray[np.int64]  # numbers in the grid, counted from 0
    addresses: Array
    mask: Array


def every_address(
    run: Callable[[Program], PathRecorder],
    grid: Program,
    seconds: float,
    wanted: Callable[[Recorded], bool],
) -> Iterator[Batch]:
    """Yield the accesses of all programs of a grid in batches.

    `run(program)` runs one program and returns its record. `wanted` chooses accesses. Raises CannotFollow if some
    programs cannot be computed, or not within `seconds`.
    """
    deadline = time.thread_time() + seconds
    count = prod(grid)
    records: list[PathRecorder] = []
    for start in range(0, count, MOST_PROGRAMS):
        if time.thread_time() > deadline:
            raise CannotFollow(f"{count - start:,} of its programs would take too long")
        left = np.arange(start, min(start + MOST_PROGRAMS, count), dtype=np.int64)
        later = count - start - left.size
        known = iter(list(records))
        while left.size:
            if time.thread_time() > deadline:
                too_many = "its programs take too many different paths"
                too_long = f"{left.size + later:,} of its programs would take too long"
                raise CannotFollow(too_many if len(records) > FEW_PATHS else too_long)
            record = next(known, None)
            if record is None:
                record = run(program_of(int(left[0]), grid))
                records.append(record)
            alike = same_path(record, left, grid)
            for rows in _chunks(left[alike], record, wanted):
                for batch in _batches(record, rows, grid, wanted):
                    yield batch
                    if time.thread_time() > deadline:
                        raise CannotFollow(f"{left.size + later:,} of its programs would take too long")
            left = left[~alike]


def _batches(
    record: PathRecorder, rows: NDArray[np.int64], grid: Program, wanted: Callable[[Recorded], bool]
) -> Iterator[Batch]:
    evaluation = record.evaluation(rows, grid)
    return (_batch(access, evaluation, rows) for access in record.accesses if wanted(access))


def _chunks(
    programs: NDArray[np.int64], record: PathRecorder, wanted: Callable[[Recorded], bool]
) -> Iterator[NDArray[np.int64]]:
    widest = max((access.pointers.data.size for access in record.accesses if wanted(access)), default=1)
    size = max(1, MOST_ELEMENTS // widest)
    for start in range(0, programs.size, size):
        yield programs[start : start + size]


def _batch(access: Recorded, evaluation: Evaluation, programs: NDArray[np.int64]) -> Batch:
    addresses = evaluation.value(access.pointers)
    mask = np.ones((1, 1), bool) if access.mask is None else evaluation.value(access.mask)
    shape = (programs.size, access.pointers.data.size)
    addresses = np.broadcast_to(addresses.reshape(len(addresses), -1), shape)
    mask = np.broadcast_to(mask.reshape(len(mask), -1), shape)
    return Batch(access.kind, access.argument, access.element_bytes, programs, addresses, mask)
