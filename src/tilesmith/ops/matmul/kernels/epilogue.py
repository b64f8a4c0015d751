"""The epilogue of a tile: y = act(z) + addend, z = sums · scales + bias.

Where a gradient needs z, the epilogue stores z beside y.

A `place` is (rows, columns, n_rows, n_columns): the tile's indices, [ROWS] and [COLUMNS], and the size of the matrix.
"""

import triton
import triton.language as tl


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    """Return the activation of z, element by element."""
    if ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # unlike a maximum, this lets NaN through
    elif ACTIVATION == "silu":
        z = z * tl.sigmoid(z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    return z


@triton.jit
def activation_slope(z, ACTIVATION: tl.constexpr):
    """Return the derivative at z; for relu also at y = relu(z)."""
    # Half precision may hold z as infinity, and infinity times zero is NaN. Past 1e4 the other factor is zero.
    bounded = tl.minimum(tl.maximum(z, -1e4), 1e4)
    if ACTIVATION == "relu":
        slope = tl.where(z > 0, 1.0, 0.0).to(z.dtype)
    elif ACTIVATION == "silu":
        sigmoid = tl.sigmoid(z)
        slope = sigmoid * (1 + bounded * (1 - sigmoid))
    else:
        slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + bounded * 0.3989422804014327 * tl.exp(-0.5 * z * z)
    return slope


@triton.jit
def scaled_and_shifted(total, vectors, strides, place):
    """Return z of a tile of sums. `vectors` and `strides` are of bias, scale_a and scale_b; None for an absent one."""
    bias_ptr, scale_a_ptr, scale_b_ptr = vectors
    rows, columns, n_rows, n_columns = place
    if scale_a_ptr is not None:
        scale_a = tl.load(scale_a_ptr + rows.to(tl.int64) * strides[1], mask=rows < n_rows, other=0.0)  # [ROWS]
        total = total * scale_a.to(total.dtype)[:, None]
    if scale_b_ptr is not None:
        scale_b = tl.load(scale_b_ptr + columns.to(tl.int64) * strides[2], mask=columns < n_columns, other=0.0)
        total = total * scale_b.to(total.dtype)[None, :]  # scale_b: [COLUMNS]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns.to(tl.int64) * strides[0], mask=columns < n_columns, other=0.0)  # [COLUMNS]
        total = total + bias.to(total.dtype)[None, :]
    return total  # [ROWS, COLUMNS]


@triton.jit
def plus_addend(y, addend_ptr, start, place, row_stride, column_stride):
    """Return y plus the addend, if there is one. The addend has the layout of the result."""
    if addend_ptr is not None:
        rows, columns, n_rows, n_columns = place
        offsets = start + (rows.to(tl.int64) * row_stride)[:, None] + (columns.to(tl.int64) * column_stride)[None, :]
        mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
        y = y + tl.load(addend_ptr + offsets, mask=mask, other=0.0).to(y.dtype)
    return y  # [ROWS, COLUMNS]


@triton.jit
def store_tile(y_ptr, y, start, place, row_stride, column_stride):
    """Store a tile y [ROWS, COLUMNS], within the matrix that begins at `start`."""
    rows, columns, n_rows, n_columns = place
    offsets = start + (rows.to(tl.int64) * row_stride)[:, None] + (columns.to(tl.int64) * column_stride)[None, :]
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)
