"""The forward: z to a and b, their product, and from it and z to y.

On Hopper bf16 of 128 channels has kernels of its own, which give and keep the same: see `hopper_tiles`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.fused.rows import (
    is_unmasked,
    load_normed,
    pairs_of_program,
    project_norm,
    starts_in_matrices,
    starts_of_pairs,
    store_channels,
    store_rows,
)
from tilesmith.ops.triangle_multiply.hopper.forward import plan_hopper_forward
from tilesmith.ops.triangle_multiply.hopper.tiles import suits_hopper
from tilesmith.ops.triangle_multiply.problem import NOT_SPECIALISED, Problem, choose_rows, matrices_shape, product_dtype


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
    """a and b, gated and masked, as a matrix for each channel."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    a, of_channel = starts_in_matrices(a_ptr, batch, i, j, n_residues, n_hidden, True)
    b, _ = starts_in_matrices(b_ptr, batch, i, j, n_residues, n_hidden, True)
    channels = tl.arange(0, BLOCK_CHANNELS)
    zn, mean, inverse_deviation = load_normed(
        z, norm_weight_ptr, norm_bias_ptr, j, channels, n_residues, n_channels, None, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    if mask_ptr is not None:
        unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
    # One loop over both, so that the next block's weights come in while this one's are multiplied.
    blocks = tl.cdiv(n_hidden, BLOCK_OUTPUTS)
    for step in range(2 * blocks):
        side = step // blocks
        hidden = step % blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        projection, gate = project_norm(
            zn, z, norm_weight_ptr, norm_bias_ptr, projection_weight_ptr, projection_bias_ptr, gate_weight_ptr,
            gate_bias_ptr, mean, inverse_deviation, j, side * n_hidden + hidden, hidden < n_hidden,
            n_residues, n_channels, None, COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        gated = projection * tl.sigmoid(gate)
        if mask_ptr is not None:
            gated = tl.where(unmasked, gated, 0.0)
        store_channels(tl.where(side == 0, a, b), gated, j, hidden, n_residues, n_hidden, of_channel)


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
    """y from the product and z."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    y = starts_of_pairs(y_ptr, batch, i, j, y_batch_stride * UNIT, y_i_stride * UNIT, y_j_stride * UNIT)
    x, of_channel = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, True)
    channels, hidden = tl.arange(0, BLOCK_CHANNELS), tl.arange(0, BLOCK_HIDDEN)
    zn, z_mean, z_inverse_deviation = load_normed(
        z, norm_weight_ptr, norm_bias_ptr, j, channels, n_residues, n_channels, None, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    xn, x_mean, x_inverse_deviation = load_normed(
        x, output_norm_weight_ptr, output_norm_bias_ptr, j, hidden, n_residues, n_hidden, of_channel, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        gate, _ = project_norm(
            zn, z, norm_weight_ptr, norm_bias_ptr, output_gate_weight_ptr, output_gate_bias_ptr, None, None,
            z_mean, z_inverse_deviation, j, outputs, outputs < n_channels, n_residues, n_channels, None,
            COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        output, _ = project_norm(
            xn, x, output_norm_weight_ptr, output_norm_bias_ptr, output_weight_ptr, output_bias_ptr, None, None,
            x_mean, x_inverse_deviation, j, outputs, outputs < n_channels, n_residues, n_hidden, of_channel,
            COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        store_rows(y, output * tl.sigmoid(gate), j, outputs, n_residues, n_channels)


@kernels("triangle_multiply_forward")
def forward(
    z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None,
    output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None,
    output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool, eps: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, and what the backward needs: a, b and their product, a matrix for each hidden channel, whose rows are
    padded, which lets the copy engine walk them."""
    shape = matrices_shape(z.shape, output_weight.shape[1])
    x = z.new_empty(shape, dtype=product_dtype(z.dtype))
    return torch.empty_like(z), z.new_empty(shape), z.new_empty(shape), x


@forward.plan
def plan_forward(plan: Plan, *arguments: object) -> tuple[Operand, ...]:
    problem = Problem(*arguments)  # type: ignore[arg-type]  # in the order of the declaration
    z, shape = problem.z, problem.matrices_shape()
    y, a, b = plan.empty_like(z), plan.empty(shape, z.dtype), plan.empty(shape, z.dtype)
    x = plan.empty(shape, problem.product_dtype)
    if suits_hopper(plan, problem, y):
        plan_hopper_forward(plan, problem, y, a, b, x)
    else:
        _plan_portable_forward(plan, problem, y, a, b, x)
    return y, a, b, x


def _plan_portable_forward(plan: Plan, problem: Problem, y: Operand, a: Operand, b: Operand, x: Operand) -> None:
    """y, a, b and x are filled."""
    config = choose_rows(plan, problem, "project")
    plan.launch(
        triangle_project_kernel, problem.grid(config), config,
        **problem.arguments(
            plan, "z", "mask", "norm_weight", "norm_bias", "projection_weight", "projection_bias", "gate_weight",
            "gate_bias", a=a, b=b,
        ),
    )  # fmt: skip
    problem.plan_product(plan, a, b, x, turned="right" if problem.outgoing else "left")
    config = choose_rows(plan, problem, "output")
    plan.launch(
        triangle_output_kernel, problem.grid(config), config,
        **problem.arguments(
            plan, "z", "norm_weight", "norm_bias", "output_norm_weight", "output_norm_bias", "output_weight",
            "output_bias", "output_gate_weight", "output_gate_bias", x=x, y=y,
        ),
    )  # fmt: skip
