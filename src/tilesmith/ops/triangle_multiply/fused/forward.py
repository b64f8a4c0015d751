"""The portable forward kernels: z to a and b, and from their product x and z to y."""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.triangle_multiply.fused.config import choose_rows, grid
from tilesmith.ops.triangle_multiply.fused.rows import (
    NOT_SPECIALISED,
    is_unmasked,
    load_normed,
    pairs_of_program,
    project_norm,
    starts_in_matrices,
    starts_of_pairs,
    store_channels,
    store_rows,
)
from tilesmith.ops.triangle_multiply.problem import Update


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_kernel(
    z_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr, projection_weight_ptr, projection_bias_ptr,
    gate_weight_ptr, gate_bias_ptr, a_ptr, b_ptr,
    z_batch_stride, z_i_stride, z_j_stride, mask_batch_stride, mask_i_stride, mask_j_stride,
    n_residues, n_channels, n_hidden, eps,
    UNIT: tl.constexpr, RESIDUES_UNIT: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Write a and b, gated and masked, as a matrix for each channel."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    a, channel_stride = starts_in_matrices(a_ptr, batch, i, j, n_residues, n_hidden, True)
    b, _ = starts_in_matrices(b_ptr, batch, i, j, n_residues, n_hidden, True)
    z_rows = (z, j, n_residues, None)
    zn, norm = load_normed(  # [ROWS, BLOCK_CHANNELS]
        z_rows, norm_weight_ptr, norm_bias_ptr, tl.arange(0, BLOCK_CHANNELS), n_channels, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    if mask_ptr is not None:
        unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
    # One loop over a and b, so that the next block's weights load during this block's products.
    blocks = tl.cdiv(n_hidden, BLOCK_OUTPUTS)
    for step in range(2 * blocks):
        side = step // blocks
        hidden = step % blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        projection, gate = project_norm(  # [ROWS, BLOCK_OUTPUTS] each
            (zn, z_rows, norm), (projection_weight_ptr, projection_bias_ptr), (gate_weight_ptr, gate_bias_ptr),
            side * n_hidden + hidden, hidden < n_hidden, n_channels, COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        gated = projection * tl.sigmoid(gate)
        if mask_ptr is not None:
            gated = tl.where(unmasked, gated, 0.0)
        store_channels(tl.where(side == 0, a, b), gated, j, hidden, n_residues, n_hidden, channel_stride)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_kernel(
    z_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, output_norm_weight_ptr, output_norm_bias_ptr,
    output_weight_ptr, output_bias_ptr, output_gate_weight_ptr, output_gate_bias_ptr, y_ptr,
    z_batch_stride, z_i_stride, z_j_stride, y_batch_stride, y_i_stride, y_j_stride,
    n_residues, n_channels, n_hidden, eps,
    UNIT: tl.constexpr, RESIDUES_UNIT: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Write y from the product x and z."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    y = starts_of_pairs(y_ptr, batch, i, j, y_batch_stride * UNIT, y_i_stride * UNIT, y_j_stride * UNIT)
    x, channel_stride = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, True)
    z_rows, x_rows = (z, j, n_residues, None), (x, j, n_residues, channel_stride)
    zn, norm = load_normed(  # [ROWS, BLOCK_CHANNELS]
        z_rows, norm_weight_ptr, norm_bias_ptr, tl.arange(0, BLOCK_CHANNELS), n_channels, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    xn, output_norm = load_normed(  # [ROWS, BLOCK_HIDDEN]
        x_rows, output_norm_weight_ptr, output_norm_bias_ptr, tl.arange(0, BLOCK_HIDDEN), n_hidden, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    output_gate, output_layer = (output_gate_weight_ptr, output_gate_bias_ptr), (output_weight_ptr, output_bias_ptr)
    z_source, x_source = (zn, z_rows, norm), (xn, x_rows, output_norm)
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        is_output = outputs < n_channels
        gate, _ = project_norm(  # [ROWS, BLOCK_OUTPUTS]
            z_source, output_gate, (None, None), outputs, is_output, n_channels, COMPUTE, PRECISION, BLOCK_INPUTS
        )
        output, _ = project_norm(  # [ROWS, BLOCK_OUTPUTS]
            x_source, output_layer, (None, None), outputs, is_output, n_hidden, COMPUTE, PRECISION, BLOCK_INPUTS
        )
        store_rows(y, output * tl.sigmoid(gate), j, outputs, n_residues, n_channels)


class PortableForward:
    """Every problem, on every GPU."""

    def takes(self, update: Update) -> bool:
        return True

    def suits(self, update: Update) -> bool:
        return True

    def plan(self, update: Update) -> None:
        """Put on the plan the kernels that write y, a, b and x."""
        plan, problem, y, a, b, x = update.plan, update.problem, update.y, update.a, update.b, update.x
        config = choose_rows(plan, problem, "project")
        plan.launch(
            triangle_project_kernel, grid(problem, config), config,
            **problem.arguments(plan, triangle_project_kernel, a=a, b=b),
        )  # fmt: skip
        problem.plan_x(plan, a, b, x)
        config = choose_rows(plan, problem, "output")
        plan.launch(
            triangle_output_kernel, grid(problem, config), config,
            **problem.arguments(plan, triangle_output_kernel, x=x, y=y),
        )  # fmt: skip
