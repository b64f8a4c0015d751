"""Any strides, without copies: a tensor of any layout as rows and columns that a kernel can walk.

The last dimension becomes the columns. The others become at most three row dimensions, merged wherever memory allows,
so that the common case (all of them merge) costs a kernel one multiplication per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import triton
import triton.language as tl

from tilesmith.ops.runtime.config import bucket

MAX_ROW_DIMENSIONS = 3
Strides = tuple[int, ...]


class NotWalkable(ValueError):
    """No kernel can walk this layout in place; contiguous copies are needed."""


@dataclass(frozen=True)
class Rows:
    """Tensors of one shape as rows × columns, all walked in the same order."""

    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]  # one per tensor
    column_strides: Strides  # one per tensor
    columns: int

    @property
    def rows(self) -> int:
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def nested(self) -> bool:
        """Whether a row's place needs more than one multiplication."""
        return self.sizes[1] != 1 or self.sizes[2] != 1

    @property
    def columns_bucket(self) -> int:
        return bucket(self.columns)

    def arguments(self, *names: str) -> dict[str, object]:
        """Kernel arguments for the walk: `n_rows`, `sizes`, and `x_strides` for a tensor named x, the names in order.

        The number of rows is apart from the other sizes so that a kernel can leave it out of what it is specialised
        on: a batch of another size must not compile anew.
        """
        arguments: dict[str, object] = {
            "n_rows": self.rows,
            "sizes": (self.columns, *self.sizes[1:]),
            "NESTED": self.nested,
        }
        for name, row_strides, column_stride in zip(names, self.strides, self.column_strides, strict=True):
            arguments[f"{name}_strides"] = (*row_strides, column_stride)
        return arguments


@lru_cache(maxsize=4096)
def as_rows(shape: tuple[int, ...], *strides: Strides) -> Rows:
    """Rows along the last dimension, for operators that reduce over it. The tensors must be walkable together."""
    columns = shape[-1]
    sizes, merged = _merged(shape[:-1], tuple(one[:-1] for one in strides))
    if len(sizes) > MAX_ROW_DIMENSIONS:
        raise NotWalkable(f"shape {shape} with strides {strides} has {len(sizes)} row dimensions that do not merge")
    padding = MAX_ROW_DIMENSIONS - len(sizes)
    # The padded dimensions come last: a row's index is divided by their sizes, which are then one.
    return Rows(
        sizes=(*sizes, *(1,) * padding),  # type: ignore[arg-type]  # three by construction
        strides=tuple((*one, *(0,) * padding) for one in merged),  # type: ignore[misc]  # likewise
        column_strides=tuple(one[-1] for one in strides),
        columns=columns,
    )


@lru_cache(maxsize=4096)
def as_elements(shape: tuple[int, ...], *strides: Strides) -> Rows:
    """Rows in the first tensor's memory order, for operators that treat every element alike.

    Where everything merges, there is a single row.
    """
    order = sorted(range(len(shape)), key=lambda dimension: (-strides[0][dimension], dimension))
    sizes, merged = _merged(
        tuple(shape[dimension] for dimension in order),
        tuple(tuple(one[dimension] for dimension in order) for one in strides),
    )
    if not sizes:
        sizes, merged = (1,), ((1,),) * len(strides)
    return as_rows(sizes, *merged)


def _merged(sizes: tuple[int, ...], strides: tuple[Strides, ...]) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Fewest dimensions with the same walk: sizes of one dropped, neighbours joined where all strides fit."""
    kept: list[int] = []
    walks: list[list[int]] = [[] for _ in strides]
    for dimension, size in enumerate(sizes):
        if size == 1:
            continue
        steps = [one[dimension] for one in strides]
        if kept and all(walk[-1] == step * size for walk, step in zip(walks, steps, strict=True)):
            kept[-1] *= size
            for walk, step in zip(walks, steps, strict=True):
                walk[-1] = step
        else:
            kept.append(size)
            for walk, step in zip(walks, steps, strict=True):
                walk.append(step)
    return tuple(kept), tuple(tuple(walk) for walk in walks)


@triton.jit
def tile_offsets(rows, columns, sizes, strides, NESTED: tl.constexpr):
    """Where the elements of a tile lie, from the tensor's first: 64-bit, so that any tensor can be addressed.

    `sizes` and `strides` are what `Rows.arguments` makes; NESTED where a row's place needs more than one stride.
    """
    rows = rows.to(tl.int64)
    if NESTED:
        index_2 = rows % sizes[2]
        index_1 = rows // sizes[2] % sizes[1]
        index_0 = rows // sizes[2] // sizes[1]
        row_starts = index_0 * strides[0] + index_1 * strides[1] + index_2 * strides[2]
    else:
        row_starts = rows * strides[0]
    return row_starts[:, None] + (columns.to(tl.int64) * strides[3])[None, :]
