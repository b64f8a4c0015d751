"""The kernels of edge norm. A program holds whole rows: the norm needs all channels."""

import triton
import triton.language as tl

from tilesmith.ops.device.channels import load_vector, norm_gradient
from tilesmith.ops.device.norms.rows import two_row_means, without_error


@triton.jit
def load_standard_rows(x_ptr, rows, is_there, columns, n_columns, eps, COMPUTE: tl.constexpr):
    """Return rows scaled to mean 0 and variance 1, with zeros past their end, and 1 / their standard deviation."""
    offsets = rows[:, None] * n_columns + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=is_there, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    in_row = (columns < n_columns)[None, :]
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]  # [ROWS, 1], rounded
    centred = tl.where(in_row, x - mean, 0.0)
    error, square = two_row_means(centred, centred * centred, n_columns)
    inverse_deviation = tl.rsqrt(without_error(square, error) + eps)  # [ROWS, 1]
    return tl.where(in_row, (x - (mean + error)) * inverse_deviation, 0.0), inverse_deviation


@triton.jit
def scale_and_shift(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE: tl.constexpr):
    """Return standard · weight + bias, the norm's output."""
    normed = standard * load_vector(weight_ptr, columns, columns < n_columns, COMPUTE)
    if bias_ptr is not None:
        normed += load_vector(bias_ptr, columns, columns < n_columns, COMPUTE)
    return normed


@triton.jit
def edge_offsets(pairs, n_residues, n_heads, TRANSPOSED: tl.constexpr):
    """Return the offset of each pair's bias for head 0 in [batch, heads, n, n], and the stride between heads."""
    head_stride = n_residues.to(tl.int64) * n_residues
    i, j = pairs // n_residues % n_residues, pairs % n_residues
    in_head = j * n_residues + i if TRANSPOSED else i * n_residues + j
    return pairs // head_stride * n_heads * head_stride + in_head, head_stride


@triton.jit
def load_weights(
    edge_weight_ptr, first, n_heads, columns, n_columns, HEADS: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return the weights of HEADS heads from `first` on, [COLUMNS] each, zeros for heads that do not exist."""
    weights: tl.tuple = ()
    for number in tl.static_range(HEADS):
        head = first + number
        mask = (columns < n_columns) & (head < n_heads)
        weights += (load_vector(edge_weight_ptr + head * n_columns, columns, mask, COMPUTE),)
    return weights


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_forward_kernel(
    x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, xn_ptr, edges_ptr, n_pairs, n_residues, n_heads, n_columns,
    eps, TRANSPOSED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS of them load their weights together, ahead of all stores."""
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_there = (pairs < n_pairs)[:, None] & (columns < n_columns)[None, :]
    standard, _ = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = scale_and_shift(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE)
    xn = xn.to(x_ptr.dtype.element_ty)  # [ROWS, COLUMNS]
    tl.store(xn_ptr + pairs[:, None] * n_columns + columns[None, :], xn, mask=is_there)
    offsets_of_edges, head_stride = edge_offsets(pairs, n_residues, n_heads, TRANSPOSED)
    for first in range(0, n_heads, HEADS):
        weights = load_weights(edge_weight_ptr, first, n_heads, columns, n_columns, HEADS, COMPUTE)
        for number in tl.static_range(HEADS):
            edge = tl.sum(xn.to(COMPUTE) * weights[number], axis=1).to(edges_ptr.dtype.element_ty)  # [ROWS]
            is_stored = (pairs < n_pairs) & (first + number < n_heads)
            tl.store(edges_ptr + offsets_of_edges + (first + number) * head_stride, edge, mask=is_stored)


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_backward_kernel(
    dxn_ptr, dedges_ptr, dsum_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, dx_ptr, partials_ptr,
    n_pairs, n_residues, n_heads, n_columns, eps,
    TRANSPOSED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute dx + dsum, and this program's partial sums for the gradients of vectors.

    The partial sums are rows of n_columns: for the norm's weight, the norm's bias, each head's edge weight, and the sum
    of dsum if dsum is given.
    """
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_column = columns < n_columns
    is_there = (pairs < n_pairs)[:, None] & is_column[None, :]
    offsets = pairs[:, None] * n_columns + columns[None, :]
    standard, inverse_deviation = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = scale_and_shift(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE)
    xn = xn.to(x_ptr.dtype.element_ty).to(COMPUTE)
    dxn = tl.zeros([ROWS, COLUMNS], COMPUTE)
    if dxn_ptr is not None:
        dxn = tl.load(dxn_ptr + offsets, mask=is_there, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    if dsum_ptr is not None:
        dsum = tl.load(dsum_ptr + offsets, mask=is_there, other=0.0)  # [ROWS, COLUMNS]
    n_sums = 2 + n_heads if dsum_ptr is None else 3 + n_heads
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (n_sums * n_columns) + columns
    if dsum_ptr is not None:
        tl.store(partials + (2 + n_heads) * n_columns, tl.sum(dsum.to(COMPUTE), axis=0), mask=is_column)
    offsets_of_edges, head_stride = edge_offsets(pairs, n_residues, n_heads, TRANSPOSED)
    for head in range(n_heads):
        weight = load_vector(edge_weight_ptr + head * n_columns, columns, is_column, COMPUTE)
        dedge_ptr = dedges_ptr + offsets_of_edges + head * head_stride
        dedge = tl.load(dedge_ptr, mask=pairs < n_pairs, other=0.0).to(COMPUTE)[:, None]  # [ROWS, 1]
        dxn += dedge * weight
        tl.store(partials + (2 + head) * n_columns, tl.sum(dedge * xn, axis=0), mask=is_column)
    tl.store(partials, tl.sum(dxn * standard, axis=0), mask=is_column)
    tl.store(partials + n_columns, tl.sum(dxn, axis=0), mask=is_column)
    norm_weight = load_vector(norm_weight_ptr, columns, is_column, COMPUTE)
    dx = norm_gradient(dxn, standard, inverse_deviation, norm_weight, n_columns)
    if dsum_ptr is not None:
        dx += dsum.to(COMPUTE)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=is_there)
