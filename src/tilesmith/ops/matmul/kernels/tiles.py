"""Which tile of which matrix a program computes, and sizes as the compiler should see them."""

import triton
import triton.language as tl


@triton.jit
def tile_place(tile, n_row_tiles, n_column_tiles, GROUP: tl.constexpr):
    """Return the matrix of this tile, and the tile's row and column in tiles.

    Tiles that run at the same time lie close together, GROUP rows of tiles high, so that they share operands in the L2
    cache.
    """
    tiles_per_matrix = n_row_tiles * n_column_tiles
    tiles_per_group = GROUP * n_column_tiles
    within = tile % tiles_per_matrix
    first_row_tile = within // tiles_per_group * GROUP
    group_rows = min(n_row_tiles - first_row_tile, GROUP)
    within_group = within % tiles_per_group
    return tile // tiles_per_matrix, first_row_tile + within_group % group_rows, within_group // group_rows


@triton.jit
def batch_start(batch, inner_sizes, strides):
    """Return the offset of the matrix of this number: a batch has three dimensions, the last one fastest.

    The size of the first dimension is not needed, so a batch of another size does not compile again.
    """
    batch = batch.to(tl.int64)
    index_2 = batch % inner_sizes[1]
    index_1 = batch // inner_sizes[1] % inner_sizes[0]
    index_0 = batch // inner_sizes[1] // inner_sizes[0]
    return index_0 * strides[0] + index_1 * strides[1] + index_2 * strides[2]


@triton.jit
def known_multiple(size, MULTIPLE: tl.constexpr):
    """Return the size, marked for the compiler as the multiple that the caller knows it to be."""
    return size // MULTIPLE * MULTIPLE
