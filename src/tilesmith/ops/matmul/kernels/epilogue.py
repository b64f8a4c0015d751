"""What the kernels of a matrix product share: which tile a program takes, and how a finished tile is stored.

A tile is BLOCK_M × BLOCK_N elements of one product y = act(z) + addend, z = a·b times scales, plus bias. Where a
gradient will need z, it is stored beside y.
"""

import triton
import triton.language as tl


@triton.jit
def tile_place(tile, n_row_tiles, n_column_tiles, GROUP: tl.constexpr):
    """Of the tile of this number: which matrix it belongs to, and its row and column in tiles.

    Tiles that run at the same time lie close together, GROUP rows of tiles high, so that they find each other's
    operands in the L2 cache.
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
    """Where the matrix of this number begins: three dimensions of batch, the last one fastest.

    The size of the first is not needed, so that a batch of another size does not compile anew.
    """
    batch = batch.to(tl.int64)
    index_2 = batch % inner_sizes[1]
    index_1 = batch // inner_sizes[1] % inner_sizes[0]
    index_0 = batch // inner_sizes[1] // inner_sizes[0]
    return index_0 * strides[0] + index_1 * strides[1] + index_2 * strides[2]


@triton.jit
def known_multiple(size, MULTIPLE: tl.constexpr):
    """The size, which the caller knows to be such a multiple, in a way that lets the compiler know it too."""
    return size // MULTIPLE * MULTIPLE


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # unlike a maximum, this lets NaN through
    elif ACTIVATION == "silu":
        z = z * tl.sigmoid(z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    return z


@triton.jit
def activation_slope(z, ACTIVATION: tl.constexpr):
    """The derivative at z; for relu also at y = relu(z)."""
    if ACTIVATION == "relu":
        slope = tl.where(z > 0, 1.0, 0.0).to(z.dtype)
    elif ACTIVATION == "silu":
        sigmoid = tl.sigmoid(z)
        slope = sigmoid * (1 + z * (1 - sigmoid))
    else:
        slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
    return slope


@triton.jit
def scaled_and_shifted(
    total, bias_ptr, scale_a_ptr, scale_b_ptr, bias_stride, scale_a_stride, scale_b_stride, rows, columns,
    n_rows, n_columns,
):  # fmt: skip
    """z, of a tile of sums of products."""
    if scale_a_ptr is not None:
        scale_a = tl.load(scale_a_ptr + rows.to(tl.int64) * scale_a_stride, mask=rows < n_rows, other=0.0)
        total = total * scale_a.to(total.dtype)[:, None]
    if scale_b_ptr is not None:
        scale_b = tl.load(scale_b_ptr + columns.to(tl.int64) * scale_b_stride, mask=columns < n_columns, other=0.0)
        total = total * scale_b.to(total.dtype)[None, :]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns.to(tl.int64) * bias_stride, mask=columns < n_columns, other=0.0)
        total = total + bias.to(total.dtype)[None, :]
    return total


@triton.jit
def plus_addend(y, addend_ptr, start, rows, columns, n_rows, n_columns, row_stride, column_stride):
    """The results of a tile, plus what is to be added to them, if there is any; it is laid out as they will be."""
    if addend_ptr is not None:
        offsets = start + (rows.to(tl.int64) * row_stride)[:, None] + (columns.to(tl.int64) * column_stride)[None, :]
        mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
        y = y + tl.load(addend_ptr + offsets, mask=mask, other=0.0).to(y.dtype)
    return y


@triton.jit
def store_tile(y_ptr, y, start, rows, columns, n_rows, n_columns, row_stride, column_stride):
    offsets = start + (rows.to(tl.int64) * row_stride)[:, None] + (columns.to(tl.int64) * column_stride)[None, :]
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def planes_of_pass(number):
    """Which parts of a and b the correction pass of this number multiplies, the smallest products first.

    low·high, middle·middle, high·low, middle·high, high·middle, where high is part 0, middle 1 and low 2. Two bits of
    each constant say the part for one pass.
    """
    return (0b00_01_00_01_10 >> (2 * number)) & 3, (0b01_00_10_01_00 >> (2 * number)) & 3


@triton.jit
def next_step(step, number, first_step, n_steps):
    """The step after this one and the pass that it belongs to: after the last step comes the first of the next pass."""
    is_last = step + 1 == first_step + n_steps
    return tl.where(is_last, first_step, step + 1), number + is_last.to(tl.int32)


CORRECTION_PASSES = tl.constexpr(5)


@triton.jit
def separately_added(total, a, b, PRECISION: tl.constexpr):
    """The total, plus a·b, rounded as ordinary additions are.

    Tensor cores cut off what a sum cannot hold instead of rounding it, so a total that stays in them loses a little at
    every step, always towards zero: 4.4e-6 of it over a depth of 4096 on an H200, 9.1e-6 over 8192, and at the worst
    element more than twice what cuBLAS loses.
    """
    K: tl.constexpr = a.shape[1]
    # A limit on imprecise additions, which means nothing for bf16, keeps the compiler from joining the two again.
    return total + tl.dot(a, b, input_precision=PRECISION, max_num_imprecise_acc=K)
