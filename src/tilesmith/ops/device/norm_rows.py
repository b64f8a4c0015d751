"""What the norms share on the device: reading and writing tiles of rows, and sums along them."""

import triton
import triton.language as tl

from tilesmith.ops.runtime.layout import tile_offsets


@triton.jit
def load_tile(
    pointer, rows, columns, mask, sizes, strides,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """A tile in the precision that is computed in; zero where the mask is not."""
    pointers = pointer + tile_offsets(rows, columns, sizes, strides, NESTED)
    return tl.load(pointers, mask=mask, other=0.0, eviction_policy=EVICTION).to(COMPUTE)


@triton.jit
def store_tile(pointer, values, rows, columns, mask, sizes, strides, NESTED: tl.constexpr):
    pointers = pointer + tile_offsets(rows, columns, sizes, strides, NESTED)
    tl.store(pointers, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def load_weight(
    weight_ptr, weight_stride, columns, in_row,
    HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """The weight beside a tile's columns, one where there is none: a factor of one costs nothing when compiled."""
    if HAS_WEIGHT:
        pointers = weight_ptr + columns * weight_stride
        weight = tl.load(pointers, mask=in_row, other=0.0, eviction_policy=EVICTION).to(COMPUTE)[None, :]
    else:
        weight = tl.full([1, 1], 1.0, COMPUTE)
    return weight


@triton.jit
def _both_added(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def both_means(first, second, n_columns):
    """The means of two tiles along their rows, as columns: the warps meet once for both instead of once for each."""
    first_sums, second_sums = tl.reduce((first, second), 1, _both_added)
    return (first_sums / n_columns)[:, None], (second_sums / n_columns)[:, None]


@triton.jit
def folded(tile, NEIGHBOURS: tl.constexpr):
    """Sums of so many neighbours in a row, which one thread holds: what is kept from block to block shrinks to them."""
    if NEIGHBOURS == 1:
        sums = tile
    else:
        sums = tl.sum(tl.reshape(tile, [tile.shape[0], tile.shape[1] // NEIGHBOURS, NEIGHBOURS]), axis=2)
    return sums


@triton.jit
def added_in_turn(sums, added):
    """Sums of several blocks, of which the first is the one in turn: it goes last, so that after all blocks have had
    their turn each is in its place again."""
    return sums[1:] + (sums[0] + added,)  # noqa: RUF005  # Triton does not unpack
