"""Walking dimensions of any strides in runs: elements that follow each other inside the innermost dimension.

A run's place in the outer dimensions is one number, computed once for the run. Only the place in the innermost
dimension differs between its elements. That saves a division for every element where dimensions do not merge.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.runtime.layout import Strides, as_rows


@dataclass(frozen=True)
class Runs:
    """Some dimensions of several tensors, walked alike: two outer ones and the innermost, all others merged."""

    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]  # one for each tensor

    @property
    def elements(self) -> int:
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def inner(self) -> int:
        return self.sizes[2]

    @property
    def contiguous(self) -> tuple[int, int, int]:
        """Return the strides of a tensor that holds these elements without gaps, in the order of the walk."""
        return self.sizes[1] * self.sizes[2], self.sizes[2], 1

    @property
    def aligned(self) -> bool:
        """Whether vector loads work: the first tensor's innermost stride is 1, and its size a multiple of 16."""
        return self.strides[0][2] == 1 and self.sizes[2] % 16 == 0

    def count(self, length: int) -> int:
        """Return the number of runs of at most `length` elements."""
        return self.sizes[0] * self.sizes[1] * -(-self.sizes[2] // length)


SHORT = 16  # a shorter run costs more in overhead than coalesced loads gain


def as_runs(shape: tuple[int, ...], *strides: Strides) -> Runs:
    """Return the walk over these dimensions, innermost in the first tensor's memory. Raises NotWalkable."""
    order = sorted(range(len(shape)), key=lambda place: (strides[0][place] != 0, -strides[0][place]))
    rows = as_rows(
        (*(shape[dimension] for dimension in order), 1),
        *((*(one[dimension] for dimension in order), 0) for one in strides),
    )
    places = [place for place, size in enumerate(rows.sizes) if size != 1]
    if places and rows.sizes[places[-1]] < SHORT:
        places.sort(key=lambda place: rows.sizes[place])
    # A single outer dimension comes first: kernels do not divide by its size, so that size may follow the batch.
    ordered = (*places[:-1], *(None,) * (3 - max(len(places), 1)), *(places[-1:] or (None,)))
    return Runs(
        sizes=tuple(1 if place is None else rows.sizes[place] for place in ordered),  # type: ignore[arg-type]  # three
        strides=tuple(tuple(0 if place is None else one[place] for place in ordered) for one in rows.strides),  # type: ignore[misc]  # likewise
    )


@triton.jit
def run_size(inner_size, ALIGNED: tl.constexpr):
    """Return the innermost size, such that the compiler knows whether it is a multiple of 16.

    The size may follow the batch, so kernels are not specialised on it. Without this knowledge there are no vector
    loads.
    """
    return inner_size // 16 * 16 if ALIGNED else inner_size


@triton.jit
def run_members(run, inner_size, LENGTH: tl.constexpr):
    """Return the places of a run's elements in the innermost dimension; places past its end are to be masked."""
    return run % tl.cdiv(inner_size, LENGTH) * LENGTH + tl.arange(0, LENGTH)  # [LENGTH]


@triton.jit
def run_offsets(run, inner_size, outer_size, strides, LENGTH: tl.constexpr):
    """Return the 64-bit offsets of a run's elements. `outer_size` is the size of the second outer dimension."""
    outer = run // tl.cdiv(inner_size, LENGTH)
    start = (outer // outer_size).to(tl.int64) * strides[0] + (outer % outer_size).to(tl.int64) * strides[1]
    return start + run_members(run, inner_size, LENGTH).to(tl.int64) * strides[2]  # [LENGTH]
