"""Tensors of any strides as rows and columns, so that kernels need no copies.

The last dimension becomes the columns. The others become at most three row dimensions, merged where their strides fit.
In the common case all of them merge, and a kernel needs one multiplication for each row.
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
    """No kernel can address this layout in place; the kernels then run on contiguous copies."""


@dataclass(frozen=True)
class Rows:
    """Tensors of one shape as rows × columns, all walked in the same order."""

    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]  # one for each tensor
    column_strides: Strides  # one for each tensor
    columns: int

    @property
    def rows(self) -> int:
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def nested(self) -> bool:
        """Whether the offset of a row needs more than one stride."""
        return self.sizes[1] != 1 or self.sizes[2] != 1

    @property
    def columns_bucket(self) -> int:
        return bucket(self.columns)

    def arguments(self, *names: str) -> dict[str, object]:
        """Return the kernel arguments of the walk: `n_rows`, `sizes`, and `x_strides` for a tensor named x.

        The names are in the order of the tensors. `n_rows` is separate from `sizes`, so that kernels can exclude it
        from specialisation: a batch of another size must not compile again.
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
    """Return rows along the last dimension, for operators that reduce over it. Raises NotWalkable."""
    columns = shape[-1]
    sizes, merged = _merged(shape[:-1], tuple(one[:-1] for one in strides))
    if 0 in sizes:  # no row: strides do not matter
        sizes, merged = (0,), ((0,),) * len(strides)
    if len(sizes) > MAX_ROW_DIMENSIONS:
        raise NotWalkable(f"shape {shape} with strides {strides} has {len(sizes)} row dimensions that do not merge")
    padding = MAX_ROW_DIMENSIONS - len(sizes)
    # The padded dimensions come last: kernels divide a row's index by their sizes, which are one.
    return Rows(
        sizes=(*sizes, *(1,) * padding),  # type: ignore[arg-type]  # three by construction
        strides=tuple((*one, *(0,) * padding) for one in merged),  # type: ignore[misc]  # likewise
        column_strides=tuple(one[-1] for one in strides),
        columns=columns,
    )


@lru_cache(maxsize=4096)
def as_elements(shape: tuple[int, ...], *strides: Strides) -> Rows:
    """Return rows in the order of the first tensor's memory, for elementwise operators. Raises NotWalkable.

    Where all dimensions merge, there is a single row.
    """
    order = sorted(range(len(shape)), key=lambda dimension: (-strides[0][dimension], dimension))
    sizes, merged = _merged(
        tuple(shape[dimension] for dimension in order),
        tuple(tuple(one[dimension] for dimension in order) for one in strides),
    )
    if 0 in sizes:
        sizes, merged = (0,), ((1,),) * len(strides)
    if not sizes:
        sizes, merged = (1,), ((1,),) * len(strides)
    return as_rows(sizes, *merged)


def _merged(sizes: tuple[int, ...], strides: tuple[Strides, ...]) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Return the fewest dimensions with the same walk: drop sizes of one, join neighbours where all strides fit."""
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
    """Return the 64-bit offsets of a tile's elements from the tensor's first element.

    `sizes`, `strides` and NESTED come from `Rows.arguments`.
    """
    rows = rows.to(tl.int64)  # [ROWS]
    if NESTED:
        index_2 = rows % sizes[2]
        index_1 = rows // sizes[2] % sizes[1]
        index_0 = rows // sizes[2] // sizes[1]
        row_starts = index_0 * strides[0] + index_1 * strides[1] + index_2 * strides[2]
    else:
        row_starts = rows * strides[0]
    return row_starts[:, None] + (columns.to(tl.int64) * strides[3])[None, :]  # [ROWS, COLUMNS]
