"""Walking dimensions of any strides in strips: runs of elements that stay inside the innermost dimension.

The place of a strip in the other dimensions is then a matter of single numbers, and only its elements' place in the
innermost one is worked out for each of them. Where many elements lie in dimensions that do not merge, that saves a
division for every element.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.runtime.layout import Strides, as_rows


@dataclass(frozen=True)
class Strips:
    """Some dimensions of several tensors, walked alike: two outer ones and the innermost, all others merged."""

    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]  # one per tensor

    @property
    def elements(self) -> int:
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def inner(self) -> int:
        return self.sizes[2]

    @property
    def contiguous(self) -> tuple[int, int, int]:
        """The strides of a tensor in which all these elements follow each other, as they are walked."""
        return self.sizes[1] * self.sizes[2], self.sizes[2], 1

    @property
    def aligned(self) -> bool:
        """Whether the first tensor's innermost elements are neighbours, and as many as loads of several take."""
        return self.strides[0][2] == 1 and self.sizes[2] % 16 == 0

    def count(self, length: int) -> int:
        """How many strips of at most so many elements there are."""
        return self.sizes[0] * self.sizes[1] * -(-self.sizes[2] // length)


SHORT = 16  # of fewer elements a strip has more overhead than it loses by taking elements that are apart in memory


def as_strips(shape: tuple[int, ...], *strides: Strides) -> Strips:
    """These dimensions, the innermost in the first tensor's memory innermost. They must be walkable together."""
    order = sorted(range(len(shape)), key=lambda place: (strides[0][place] != 0, -strides[0][place]))
    rows = as_rows(
        (*(shape[dimension] for dimension in order), 1),
        *((*(one[dimension] for dimension in order), 0) for one in strides),
    )
    places = [place for place, size in enumerate(rows.sizes) if size != 1]
    if places and rows.sizes[places[-1]] < SHORT:
        places.sort(key=lambda place: rows.sizes[place])
    # A single outer dimension comes first: nothing is divided by its size, so it may follow the batch.
    ordered = (*places[:-1], *(None,) * (3 - max(len(places), 1)), *(places[-1:] or (None,)))
    return Strips(
        sizes=tuple(1 if place is None else rows.sizes[place] for place in ordered),  # type: ignore[arg-type]  # three
        strides=tuple(tuple(0 if place is None else one[place] for place in ordered) for one in rows.strides),  # type: ignore[misc]  # likewise
    )


@triton.jit
def strip_size(inner_size, ALIGNED: tl.constexpr):
    """The size of the innermost dimension, of which the compiler then knows whether it is a multiple of 16.

    It may follow the batch, so code is not specialised on it; but only with that knowledge are several elements
    loaded at once.
    """
    return inner_size // 16 * 16 if ALIGNED else inner_size


@triton.jit
def strip_members(strip, inner_size, LENGTH: tl.constexpr):
    """Which elements of the innermost dimension make up a strip; those past its end are not there."""
    return strip % tl.cdiv(inner_size, LENGTH) * LENGTH + tl.arange(0, LENGTH)


@triton.jit
def strip_offsets(strip, inner_size, outer_size, strides, LENGTH: tl.constexpr):
    """Where a strip's elements lie, from the tensor's first: 64-bit. `outer_size` is the second outer dimension's."""
    run = strip // tl.cdiv(inner_size, LENGTH)
    start = (run // outer_size).to(tl.int64) * strides[0] + (run % outer_size).to(tl.int64) * strides[1]
    return start + strip_members(strip, inner_size, LENGTH).to(tl.int64) * strides[2]
