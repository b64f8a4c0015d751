"""Kernels for the elementwise passes between two GEMMs: each reads and writes memory once.

`projections` has a row for each pair: the hidden channels of a's projection, of b's, of a's gate and of b's, then the
output gate's channels. The GEMM leaves out all biases; these kernels add them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.device.channels import load_vector, norm_gradient, store_partial
from tilesmith.ops.triangle_multiply.fused.rows import (
    is_unmasked,
    load_normed,
    load_rows,
    load_standard,
    load_statistics,
    pairs_of_program,
    starts_in_matrices,
    starts_of_rows,
    store_channels,
    store_rows,
)

NOT_SPECIALISED = ["n_residues", "n_pairs", "mask_batch_stride", "mask_i_stride", "mask_j_stride"]


@triton.jit
def load_gated(
    projections, projection_bias_ptr, gate_bias_ptr, j, outputs, is_hidden, n_residues, n_hidden, COMPUTE: tl.constexpr
):
    """Return the projections of these pairs and σ(gate), [ROWS, COLUMNS] each. `outputs` counts through a and b."""
    mask = (j < n_residues)[:, None] & is_hidden[None, :]
    pointers = projections[:, None] + outputs[None, :]
    projection = tl.load(pointers, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    gate = tl.load(pointers + 2 * n_hidden, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    if projection_bias_ptr is not None:
        projection += load_vector(projection_bias_ptr, outputs, is_hidden, COMPUTE)
    if gate_bias_ptr is not None:
        gate += load_vector(gate_bias_ptr, outputs, is_hidden, COMPUTE)
    return projection, tl.sigmoid(gate)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_gate_kernel(
    projections_ptr, mask_ptr, projection_bias_ptr, gate_bias_ptr, a_ptr, b_ptr,
    mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_channels, n_hidden,
    RESIDUES_UNIT: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a, or b in the second half of the programs: gated and masked, as a matrix for each channel."""
    n_residues = n_residues * RESIDUES_UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    blocks = tl.cdiv(n_hidden, COLUMNS)
    side = tl.program_id(1) // blocks
    hidden = tl.program_id(1) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    projections = starts_of_rows(projections_ptr, batch, i, j, n_residues, 4 * n_hidden + n_channels)
    projection, opening = load_gated(  # [ROWS, COLUMNS] each
        projections, projection_bias_ptr, gate_bias_ptr, j, side * n_hidden + hidden, hidden < n_hidden, n_residues,
        n_hidden, COMPUTE,
    )  # fmt: skip
    gated = projection * opening
    if mask_ptr is not None:
        unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
        gated = tl.where(unmasked, gated, 0.0)
    matrices, channel_stride = starts_in_matrices(
        tl.where(side == 0, a_ptr, b_ptr), batch, i, j, n_residues, n_hidden, True
    )  # fmt: skip
    store_channels(matrices, gated, j, hidden, n_residues, n_hidden, channel_stride)


@triton.jit
def load_output(
    output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, pairs, is_pair, channels, n_channels, n_hidden,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return the output before its gate and σ(gate), [ROWS, COLUMNS] each, and the mask of what exists."""
    mask = is_pair[:, None] & (channels < n_channels)[None, :]
    output_pointers = output_ptr + pairs[:, None] * n_channels + channels[None, :]
    output = tl.load(output_pointers, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    gates = projections_ptr + pairs[:, None] * (4 * n_hidden + n_channels) + 4 * n_hidden
    gate = tl.load(gates + channels[None, :], mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    if output_bias_ptr is not None:
        output += load_vector(output_bias_ptr, channels, channels < n_channels, COMPUTE)
    if output_gate_bias_ptr is not None:
        gate += load_vector(output_gate_bias_ptr, channels, channels < n_channels, COMPUTE)
    return output, tl.sigmoid(gate), mask


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_gate_kernel(
    output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, addend_ptr, y_ptr,
    n_pairs, n_channels, n_hidden, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write y, plus the addend if there is one."""
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    output, opening, mask = load_output(
        output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, pairs, pairs < n_pairs, channels,
        n_channels, n_hidden, COMPUTE,
    )  # fmt: skip
    places = pairs[:, None] * n_channels + channels[None, :]
    y = output * opening  # [ROWS, COLUMNS]
    if addend_ptr is not None:
        y += tl.load(addend_ptr + places, mask=mask, other=0.0).to(COMPUTE)
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_gate_gradient_kernel(
    dy_ptr, output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, doutput_ptr, partials_ptr,
    n_pairs, n_channels, n_hidden, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the output's gradient, and partial sums for its bias."""
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _, opening, mask = load_output(
        output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, pairs, pairs < n_pairs, channels,
        n_channels, n_hidden, COMPUTE,
    )  # fmt: skip
    places = pairs[:, None] * n_channels + channels[None, :]
    doutput = tl.load(dy_ptr + places, mask=mask, other=0.0).to(COMPUTE) * opening  # [ROWS, COLUMNS]
    tl.store(doutput_ptr + places, doutput.to(doutput_ptr.dtype.element_ty), mask=mask)
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * n_channels
    store_partial(partials, channels, channels < n_channels, doutput)


@triton.jit
def store_gate_gradient(dprojections, partials, gradient, j, columns, n_residues, n_columns):
    """Store a gradient, [ROWS, COLUMNS], and its sum over these rows."""
    store_rows(dprojections, gradient, j, columns, n_residues, n_columns)
    store_partial(partials, columns, columns < n_columns, gradient)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_gate_gradient_kernel(
    dy_ptr, da_ptr, db_ptr, output_ptr, projections_ptr, mask_ptr, projection_bias_ptr, gate_bias_ptr, output_bias_ptr,
    output_gate_bias_ptr, dprojections_ptr, partials_ptr,
    mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_channels, n_hidden,
    RESIDUES_UNIT: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write some columns of the gradients of all projections and gates, and partial sums for their biases."""
    n_residues = n_residues * RESIDUES_UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    n_outputs = 4 * n_hidden + n_channels
    dprojections = starts_of_rows(dprojections_ptr, batch, i, j, n_residues, n_outputs)
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * n_outputs
    blocks = tl.cdiv(n_hidden, COLUMNS)
    side = tl.program_id(1) // blocks  # 0: a's columns, 1: b's, 2 or more: the output gate's
    columns = (tl.program_id(1) - tl.minimum(side, 2) * blocks) * COLUMNS + tl.arange(0, COLUMNS)
    if side < 2:
        projections = starts_of_rows(projections_ptr, batch, i, j, n_residues, n_outputs)
        projection, opening = load_gated(  # [ROWS, COLUMNS] each
            projections, projection_bias_ptr, gate_bias_ptr, j, side * n_hidden + columns, columns < n_hidden,
            n_residues, n_hidden, COMPUTE,
        )  # fmt: skip
        matrices, channel_stride = starts_in_matrices(
            tl.where(side == 0, da_ptr, db_ptr), batch, i, j, n_residues, n_hidden, False
        )  # fmt: skip
        dgated_rows = (matrices, j, n_residues, channel_stride)
        dgated = load_rows(dgated_rows, columns, n_hidden).to(COMPUTE)  # [ROWS, COLUMNS]
        if mask_ptr is not None:
            unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
            dgated = tl.where(unmasked, dgated, 0.0)
        dprojection = dgated * opening
        dgate = dprojection * projection * (1 - opening)
        first = side * n_hidden
        store_gate_gradient(dprojections + first, partials + first, dprojection, j, columns, n_residues, n_hidden)
        first += 2 * n_hidden
        store_gate_gradient(dprojections + first, partials + first, dgate, j, columns, n_residues, n_hidden)
    else:
        pairs = (batch * n_residues + i) * n_residues + j
        output, opening, _ = load_output(
            output_ptr, projections_ptr, output_bias_ptr, output_gate_bias_ptr, pairs, j < n_residues, columns,
            n_channels, n_hidden, COMPUTE,
        )  # fmt: skip
        dy_starts = starts_of_rows(dy_ptr, batch, i, j, n_residues, n_channels)
        dy = load_rows((dy_starts, j, n_residues, None), columns, n_channels).to(COMPUTE)  # [ROWS, COLUMNS]
        dgate = dy * output * opening * (1 - opening)
        first = 4 * n_hidden
        store_gate_gradient(dprojections + first, partials + first, dgate, j, columns, n_residues, n_channels)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_product_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, xn_ptr, n_residues, n_hidden, eps,
    RESIDUES_UNIT: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the norm of the product over its channels, as [batch, n, n, hidden]."""
    n_residues = n_residues * RESIDUES_UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    hidden = tl.arange(0, COLUMNS)
    x, channel_stride = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, False)
    x_rows = (x, j, n_residues, channel_stride)
    xn, _ = load_normed(  # [ROWS, COLUMNS]
        x_rows, weight_ptr, bias_ptr, hidden, n_hidden, eps, xn_ptr.dtype.element_ty, COMPUTE
    )
    store_rows(starts_of_rows(xn_ptr, batch, i, j, n_residues, n_hidden), xn, j, hidden, n_residues, n_hidden)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_product_norm_gradient_kernel(
    dxn_ptr, x_ptr, weight_ptr, dx_ptr, partials_ptr, n_residues, n_hidden, eps,
    RESIDUES_UNIT: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write dx, as a matrix for each channel, and partial sums for the norm's weight and bias."""
    n_residues = n_residues * RESIDUES_UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    hidden = tl.arange(0, COLUMNS)
    is_hidden = hidden < n_hidden
    x, channel_stride = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, False)
    x_rows = (x, j, n_residues, channel_stride)
    mean, inverse_deviation = load_statistics(x_rows, hidden, n_hidden, eps, COMPUTE)  # [ROWS, 1]
    standard = load_standard(x_rows, mean, inverse_deviation, hidden, n_hidden, COMPUTE)  # [ROWS, COLUMNS]
    dxn_starts = starts_of_rows(dxn_ptr, batch, i, j, n_residues, n_hidden)
    dxn = load_rows((dxn_starts, j, n_residues, None), hidden, n_hidden).to(COMPUTE)  # [ROWS, COLUMNS]
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (2 * n_hidden)
    store_partial(partials, hidden, is_hidden, dxn * standard)
    store_partial(partials + n_hidden, hidden, is_hidden, dxn)
    dx = norm_gradient(dxn, standard, inverse_deviation, load_vector(weight_ptr, hidden, is_hidden, COMPUTE), n_hidden)
    dx_starts, channel_stride = starts_in_matrices(dx_ptr, batch, i, j, n_residues, n_hidden, True)
    store_channels(dx_starts, dx, j, hidden, n_residues, n_hidden, channel_stride)
