"""The kernels of QK-norm with rotation. A row is one head at one position, in two halves of PAIRS."""

import triton
import triton.language as tl


@triton.jit
def row_offsets(rows, strides, n_heads, n_positions):
    """Return where rows of [batch, heads, positions, elements] start; neighbouring rows are heads of a position."""
    heads, positions = rows % n_heads, rows // n_heads % n_positions
    return rows // (n_heads * n_positions) * strides[0] + heads * strides[1] + positions * strides[2]  # [ROWS]


@triton.jit
def table_offsets(rows, strides, n_heads, n_positions):
    """Return where the rows of cos or sin start that belong to these rows."""
    return rows // (n_heads * n_positions) * strides[0] + rows // n_heads % n_positions * strides[1]  # [ROWS]


@triton.jit
def load_halves(pointers, stride, n_pairs, in_rows, COMPUTE: tl.constexpr, PAIRS: tl.constexpr):
    """Return both halves of some rows; `pointers` are their starts."""
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
    first = tl.load(pointers[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
    second = tl.load(pointers[:, None] + ((pairs + n_pairs) * stride)[None, :], mask=mask, other=0.0)
    return first.to(COMPUTE), second.to(COMPUTE)  # [ROWS, PAIRS] each


@triton.jit
def store_halves(pointers, stride, n_pairs, in_rows, first, second, PAIRS: tl.constexpr):
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    mask = in_rows[:, None] & (pairs < n_pairs)[None, :]  # [ROWS, PAIRS]
    tl.store(pointers[:, None] + (pairs * stride)[None, :], first.to(pointers.dtype.element_ty), mask=mask)
    second_pointers = pointers[:, None] + ((pairs + n_pairs) * stride)[None, :]
    tl.store(second_pointers, second.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def load_weight_halves(weight_ptr, stride, n_pairs, COMPUTE: tl.constexpr, PAIRS: tl.constexpr):
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    in_row = pairs < n_pairs
    first = tl.load(weight_ptr + pairs * stride, mask=in_row, other=0.0).to(COMPUTE)
    second = tl.load(weight_ptr + (pairs + n_pairs) * stride, mask=in_row, other=0.0).to(COMPUTE)
    return first[None, :], second[None, :]  # [1, PAIRS] each


@triton.jit
def normed_and_rotated(
    x, y, weight, tables, rows, sizes, eps, COMPUTE: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """Norm, scale and rotate some rows of q or k.

    x, y and weight are (pointer, strides), `tables` is cos and sin, each so; `sizes` is (n_rows, n_heads, n_positions,
    n_pairs).
    """
    x_ptr, x_strides = x
    y_ptr, y_strides = y
    weight_ptr, weight_stride = weight
    cos_ptr, cos_strides, sin_ptr, sin_strides = tables
    n_rows, n_heads, n_positions, n_pairs = sizes
    in_rows = rows < n_rows
    x_rows = x_ptr + row_offsets(rows, x_strides, n_heads, n_positions)
    first, second = load_halves(x_rows, x_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
    cos_rows = cos_ptr + table_offsets(rows, cos_strides, n_heads, n_positions)
    sin_rows = sin_ptr + table_offsets(rows, sin_strides, n_heads, n_positions)
    first_cos, second_cos = load_halves(cos_rows, cos_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
    first_sin, second_sin = load_halves(sin_rows, sin_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
    first_weight, second_weight = load_weight_halves(weight_ptr, weight_stride, n_pairs, COMPUTE, PAIRS)
    squares = tl.sum(first * first + second * second, axis=1)
    inverse_rms = tl.rsqrt(squares / (2 * n_pairs) + eps)[:, None]  # [ROWS, 1]
    first, second = first * inverse_rms * first_weight, second * inverse_rms * second_weight
    y_rows = y_ptr + row_offsets(rows, y_strides, n_heads, n_positions)
    rotated = first * first_cos - second * first_sin
    store_halves(
        y_rows, y_strides[3], n_pairs, in_rows, rotated, second * second_cos + first * second_sin, PAIRS
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_positions", "q_rows", "k_rows"])
def rms_norm_rope_forward_kernel(
    q_ptr, k_ptr, rotated_q_ptr, rotated_k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    q_strides, k_strides, rotated_q_strides, rotated_k_strides, q_weight_stride, k_weight_stride, cos_strides,
    sin_strides, n_positions, q_heads, k_heads, q_rows, k_rows, n_pairs, eps,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of q, or of k."""
    q_blocks = tl.cdiv(q_rows, ROWS)
    block = tl.program_id(0).to(tl.int64)
    if block < q_blocks:
        rows = block * ROWS + tl.arange(0, ROWS)  # [ROWS]
        normed_and_rotated(
            (q_ptr, q_strides), (rotated_q_ptr, rotated_q_strides), (q_weight_ptr, q_weight_stride),
            (cos_ptr, cos_strides, sin_ptr, sin_strides), rows, (q_rows, q_heads, n_positions, n_pairs), eps,
            COMPUTE, PAIRS,
        )  # fmt: skip
    else:
        rows = (block - q_blocks) * ROWS + tl.arange(0, ROWS)  # [ROWS]
        normed_and_rotated(
            (k_ptr, k_strides), (rotated_k_ptr, rotated_k_strides), (k_weight_ptr, k_weight_stride),
            (cos_ptr, cos_strides, sin_ptr, sin_strides), rows, (k_rows, k_heads, n_positions, n_pairs), eps,
            COMPUTE, PAIRS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_positions", "n_rows", "rows_per_program"])
def rms_norm_rope_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, partials_ptr, cos_ptr, sin_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, cos_strides, sin_strides,
    n_positions, n_heads, n_rows, rows_per_program, n_pairs, eps,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The gradient of rows_per_program rows of q or of k, and their part of the weight's gradient."""
    program = tl.program_id(0).to(tl.int64)
    first_weight, second_weight = load_weight_halves(weight_ptr, weight_stride, n_pairs, COMPUTE, PAIRS)
    first_total = tl.zeros([ROWS, PAIRS], COMPUTE)
    second_total = tl.zeros([ROWS, PAIRS], COMPUTE)
    for start in range(0, rows_per_program, ROWS):
        rows = program * rows_per_program + start + tl.arange(0, ROWS)
        in_rows = rows < n_rows
        dy_rows = dy_ptr + row_offsets(rows, dy_strides, n_heads, n_positions)
        x_rows = x_ptr + row_offsets(rows, x_strides, n_heads, n_positions)
        cos_rows = cos_ptr + table_offsets(rows, cos_strides, n_heads, n_positions)
        sin_rows = sin_ptr + table_offsets(rows, sin_strides, n_heads, n_positions)
        first_dy, second_dy = load_halves(dy_rows, dy_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
        first, second = load_halves(x_rows, x_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
        first_cos, second_cos = load_halves(cos_rows, cos_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
        first_sin, second_sin = load_halves(sin_rows, sin_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
        squares = tl.sum(first * first + second * second, axis=1)
        inverse_rms = tl.rsqrt(squares / (2 * n_pairs) + eps)[:, None]  # [ROWS, 1]
        first, second = first * inverse_rms, second * inverse_rms
        # The gradient of the scaled norm is dy rotated back.
        first_dn = first_dy * first_cos + second_dy * second_sin
        second_dn = second_dy * second_cos - first_dy * first_sin
        first_total += tl.where(in_rows[:, None], first_dn * first, 0.0)
        second_total += tl.where(in_rows[:, None], second_dn * second, 0.0)
        first_dn, second_dn = first_dn * first_weight, second_dn * second_weight
        mean = (tl.sum(first_dn * first + second_dn * second, axis=1) / (2 * n_pairs))[:, None]
        dx_rows = dx_ptr + row_offsets(rows, dx_strides, n_heads, n_positions)
        store_halves(
            dx_rows, dx_strides[3], n_pairs, in_rows, (first_dn - first * mean) * inverse_rms,
            (second_dn - second * mean) * inverse_rms, PAIRS,
        )  # fmt: skip
    pairs = tl.arange(0, PAIRS)
    partials = partials_ptr + program * 2 * n_pairs + pairs
    tl.store(partials, tl.sum(first_total, axis=0), mask=pairs < n_pairs)
    tl.store(partials + n_pairs, tl.sum(second_total, axis=0), mask=pairs < n_pairs)
