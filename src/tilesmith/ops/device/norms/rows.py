"""Device functions that the norms share: tiles of rows, their parameters, and sums along rows.

Named tuples carry what belongs together from function to function. Device functions are inlined, so the tuples exist
only while a kernel compiles. They hold no compile-time constants: a constant that is assigned becomes a tensor.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.row_chunks import add_pairs
from tilesmith.ops.runtime.layout import tile_offsets

ONE_PLUS = tl.constexpr(2)
"""HAS_WEIGHT of a kernel that multiplies by 1 + weight."""


def factor_of(weight: Any, one_plus: bool) -> int:
    """Return HAS_WEIGHT: 0 without a weight, 1 with one, 2 for the factor 1 + weight."""
    return 0 if weight is None else 1 + one_plus


class RowTensor(NamedTuple):
    """A tensor that is read or written as rows; its strides are those of three row dimensions and of the columns."""

    pointer: Any
    strides: Any


class Vector(NamedTuple):
    """A parameter of one element per column."""

    pointer: Any
    stride: Any


class RowTile(NamedTuple):
    """Which elements of the rows a tile covers."""

    rows: Any  # [ROWS]
    columns: Any  # [BLOCK_SIZE]
    mask: Any  # [ROWS, BLOCK_SIZE], or of size one where all rows or all columns have the same mask
    sizes: Any  # as `Rows.arguments` gives them


class GradientTensors(NamedTuple):
    """The tensors of a norm's backward. `dsum` is the gradient that is added to dx."""

    dy: RowTensor
    x: RowTensor
    dx: RowTensor
    dsum: RowTensor
    weight: Vector


class RowGroup(NamedTuple):
    """Some rows that are read block by block."""

    rows: Any  # [ROWS]
    n_rows: Any
    sizes: Any


@triton.jit
def load_tile(tensor, tile, NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr):
    """Return a tile in the dtype COMPUTE, with zeros outside the mask."""
    pointers = tensor.pointer + tile_offsets(tile.rows, tile.columns, tile.sizes, tensor.strides, NESTED)
    return tl.load(pointers, mask=tile.mask, other=0.0, eviction_policy=EVICTION).to(COMPUTE)  # [ROWS, BLOCK_SIZE]


@triton.jit
def store_tile(tensor, values, tile, NESTED: tl.constexpr):
    """Store a tile in the tensor's dtype."""
    pointers = tensor.pointer + tile_offsets(tile.rows, tile.columns, tile.sizes, tensor.strides, NESTED)
    tl.store(pointers, values.to(tensor.pointer.dtype.element_ty), mask=tile.mask)


@triton.jit
def plus_one(values, HAS_WEIGHT: tl.constexpr):
    """Return a weight in the dtype of the computation as the factor that HAS_WEIGHT says."""
    return values + 1.0 if HAS_WEIGHT == ONE_PLUS else values


@triton.jit
def load_weight(
    weight, columns, in_row, HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr
):  # fmt: skip
    """Return the factors of some columns as a row; one where there is no parameter, which costs no instruction."""
    if HAS_WEIGHT:
        pointers = weight.pointer + columns * weight.stride
        values = tl.load(pointers, mask=in_row, other=0.0, eviction_policy=EVICTION).to(COMPUTE)[None, :]
        values = plus_one(values, HAS_WEIGHT)
    else:
        values = tl.full([1, 1], 1.0, COMPUTE)
    return values  # [1, BLOCK_SIZE] or [1, 1]


@triton.jit
def columns_of_program(
    weight, n_columns, HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr
):  # fmt: skip
    """Return this program's columns, which of them exist, their weights, and the program's part of the rows.

    Programs go along a row first.
    """
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns  # [BLOCK_SIZE]
    part = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    return columns, in_row, load_weight(weight, columns, in_row, HAS_WEIGHT, COMPUTE, ""), part


@triton.jit
def two_row_means(first, second, n_columns):
    """Return the means of two tiles along their rows. One reduction for both synchronises the warps once."""
    first_sums, second_sums = tl.reduce((first, second), 1, add_pairs)
    return (first_sums / n_columns)[:, None], (second_sums / n_columns)[:, None]  # [ROWS, 1] each


@triton.jit
def without_error(square, error):
    """Return the variance, from the mean square of distances to a rounded mean and that mean's error.

    The mean plus its error is exact where all elements are equal: their distances are then zero, whatever their size.
    """
    return tl.where(square < float("inf"), tl.maximum(square - error * error, 0.0), square)  # ∞ − ∞ is NaN


@triton.jit
def store_statistics(pointer, rows, first, second, mask):
    """Store two numbers of each row after each other."""
    tl.store(pointer + 2 * rows, first, mask=mask)
    tl.store(pointer + 2 * rows + 1, second, mask=mask)


@triton.jit
def load_statistics(pointer, rows, mask):
    """Return the two numbers that `store_statistics` stored of each row."""
    return tl.load(pointer + 2 * rows, mask=mask, other=0.0), tl.load(pointer + 2 * rows + 1, mask=mask, other=0.0)


@triton.jit
def add_to_first_and_rotate(sums, added):
    """Add to the first of several sums and move it to the end. After one call per sum, each is in its place again."""
    return sums[1:] + (sums[0] + added,)  # noqa: RUF005  # Triton does not unpack
