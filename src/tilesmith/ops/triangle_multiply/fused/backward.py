"""The backward: from dy through the product to dz, and what the gradients of the weights are made of.

With s = σ(output gate) and o the output before it: do = dy · s, its gate's gradient is dy · o · s · (1 − s), and the
product's gradient is that of a norm. Through the product go da and db; with t = σ(gate) and p the projection, their
gradients are da · t and da · p · t · (1 − t). All gates' and projections' gradients times their weights add up to that
of zn, and dz is that of a norm again.

On Hopper bf16 of 128 channels has kernels of its own in `hopper_backward`, and its sums are made in `hopper_weights`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.fused.rows import (
    is_unmasked,
    load_normed,
    load_rows,
    load_standard,
    load_statistics,
    load_vector,
    load_weight,
    norm_gradient,
    pairs_of_program,
    project_norm,
    starts_in_matrices,
    starts_of_pairs,
    starts_of_rows,
    store_channels,
    store_partial,
    store_rows,
)
from tilesmith.ops.triangle_multiply.hopper import backward as hopper_backward
from tilesmith.ops.triangle_multiply.hopper.tiles import suits_hopper
from tilesmith.ops.triangle_multiply.hopper.weight_gradients import plan_moments, plan_weight_gradients
from tilesmith.ops.triangle_multiply.problem import NOT_SPECIALISED, Problem, RowsConfig, choose_rows, compute


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_gradient_kernel(
    dy_ptr, z_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, output_norm_weight_ptr, output_norm_bias_ptr,
    output_weight_ptr, output_bias_ptr, output_gate_weight_ptr, output_gate_bias_ptr,
    dx_ptr, zn_ptr, xn_ptr, doutput_ptr, dprojections_ptr, partials_ptr,
    dy_batch_stride, dy_i_stride, dy_j_stride, z_batch_stride, z_i_stride, z_j_stride,
    n_residues, n_channels, n_hidden, eps,
    UNIT: tl.constexpr, RESIDUES_UNIT: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """dx; zn, xn and do, of which the weights' gradients are made; the output gate's gradient, behind the others of
    `dprojections`; and partial sums for the output norm's weight and bias, the output's bias and its gate's."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    dy = starts_of_pairs(dy_ptr, batch, i, j, dy_batch_stride * UNIT, dy_i_stride * UNIT, dy_j_stride * UNIT)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    x, of_channel = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, True)
    doutputs = starts_of_rows(doutput_ptr, batch, i, j, n_residues, n_channels)
    dgates = starts_of_rows(dprojections_ptr, batch, i, j, n_residues, 4 * n_hidden + n_channels) + 4 * n_hidden
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (6 * n_hidden + 4 * n_channels)
    channels, hidden = tl.arange(0, BLOCK_CHANNELS), tl.arange(0, BLOCK_HIDDEN)
    zn, z_mean, z_inverse_deviation = load_normed(
        z, norm_weight_ptr, norm_bias_ptr, j, channels, n_residues, n_channels, None, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    xn, x_mean, x_inverse_deviation = load_normed(
        x, output_norm_weight_ptr, output_norm_bias_ptr, j, hidden, n_residues, n_hidden, of_channel, eps,
        z_ptr.dtype.element_ty, COMPUTE,
    )  # fmt: skip
    store_rows(starts_of_rows(zn_ptr, batch, i, j, n_residues, n_channels), zn, j, channels, n_residues, n_channels)
    store_rows(starts_of_rows(xn_ptr, batch, i, j, n_residues, n_hidden), xn, j, hidden, n_residues, n_hidden)
    dxn = tl.zeros([ROWS, BLOCK_HIDDEN], COMPUTE)
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        is_output = outputs < n_channels
        gate, _ = project_norm(
            zn, z, norm_weight_ptr, norm_bias_ptr, output_gate_weight_ptr, output_gate_bias_ptr, None, None,
            z_mean, z_inverse_deviation, j, outputs, is_output, n_residues, n_channels, None,
            COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        output, _ = project_norm(
            xn, x, output_norm_weight_ptr, output_norm_bias_ptr, output_weight_ptr, output_bias_ptr, None, None,
            x_mean, x_inverse_deviation, j, outputs, is_output, n_residues, n_hidden, of_channel,
            COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        opening = tl.sigmoid(gate)
        doutput = load_rows(dy, j, outputs, n_residues, n_channels, None).to(COMPUTE) * opening
        dgate = (doutput * output * (1 - opening)).to(zn.dtype)
        doutput = doutput.to(zn.dtype)
        # Before anything is stored: then this is the load above, where that took all inputs.
        weight = load_weight(output_weight_ptr, outputs, is_output, hidden, n_hidden)
        dxn = tl.dot(doutput, tl.trans(weight), dxn, input_precision=PRECISION, out_dtype=COMPUTE)
        store_rows(doutputs, doutput, j, outputs, n_residues, n_channels)
        store_rows(dgates, dgate, j, outputs, n_residues, n_channels)
        store_partial(partials + 2 * n_hidden, outputs, is_output, doutput)
        store_partial(partials + 2 * n_hidden + n_channels, outputs, is_output, dgate)
    standard = load_standard(
        x, x_mean, x_inverse_deviation, j, hidden, n_residues, n_hidden, of_channel, COMPUTE
    )  # fmt: skip
    is_hidden = hidden < n_hidden
    store_partial(partials, hidden, is_hidden, dxn * standard)
    store_partial(partials + n_hidden, hidden, is_hidden, dxn)
    norm_weight = load_vector(output_norm_weight_ptr, hidden, is_hidden, COMPUTE)
    dx = norm_gradient(dxn, standard, x_inverse_deviation, norm_weight, n_hidden)
    dx_starts, of_channel = starts_in_matrices(dx_ptr, batch, i, j, n_residues, n_hidden, True)
    store_channels(dx_starts, dx, j, hidden, n_residues, n_hidden, of_channel)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_gradient_kernel(
    da_ptr, db_ptr, z_ptr, zn_ptr, mask_ptr, norm_weight_ptr, projection_weight_ptr, projection_bias_ptr,
    gate_weight_ptr, gate_bias_ptr, output_gate_weight_ptr, dz_ptr, dprojections_ptr, partials_ptr,
    z_batch_stride, z_i_stride, z_j_stride, mask_batch_stride, mask_i_stride, mask_j_stride,
    dz_batch_stride, dz_i_stride, dz_j_stride, n_residues, n_channels, n_hidden, eps,
    UNIT: tl.constexpr, RESIDUES_UNIT: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """dz; the gradients of projections and gates, of which their weights' gradients are made; and partial sums for the
    norm's weight and bias, the projections' bias and the gates'.

    zn is read, not made: the tensor cores then take it from shared memory, and registers are left for the sums."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    da, of_channel = starts_in_matrices(da_ptr, batch, i, j, n_residues, n_hidden, True)
    db, _ = starts_in_matrices(db_ptr, batch, i, j, n_residues, n_hidden, True)
    dprojections = starts_of_rows(dprojections_ptr, batch, i, j, n_residues, 4 * n_hidden + n_channels)
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (6 * n_hidden + 4 * n_channels)
    partials += 2 * n_hidden + 2 * n_channels
    channels = tl.arange(0, BLOCK_CHANNELS)
    zn_starts = starts_of_rows(zn_ptr, batch, i, j, n_residues, n_channels)
    zn = load_rows(zn_starts, j, channels, n_residues, n_channels, None)
    if mask_ptr is not None:
        unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
    dzn = tl.zeros([ROWS, BLOCK_CHANNELS], COMPUTE)
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        dgate = load_rows(dprojections + 4 * n_hidden, j, outputs, n_residues, n_channels, None)
        weight = load_weight(output_gate_weight_ptr, outputs, outputs < n_channels, channels, n_channels)
        dzn = tl.dot(dgate, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
    blocks = tl.cdiv(n_hidden, BLOCK_OUTPUTS)
    for step in range(2 * blocks):
        side = step // blocks
        hidden = step % blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        outputs, is_output = side * n_hidden + hidden, hidden < n_hidden
        projection, gate = project_norm(
            zn, zn_starts, None, None, projection_weight_ptr, projection_bias_ptr, gate_weight_ptr, gate_bias_ptr,
            None, None, j, outputs, is_output, n_residues, n_channels, None, COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        opening = tl.sigmoid(gate)
        dgated = load_rows(tl.where(side == 0, da, db), j, hidden, n_residues, n_hidden, of_channel).to(COMPUTE)
        if mask_ptr is not None:
            dgated = tl.where(unmasked, dgated, 0.0)
        dprojection = dgated * opening
        dgate = dprojection * projection * (1 - opening)
        dprojection, dgate = dprojection.to(zn.dtype), dgate.to(zn.dtype)
        # Before anything is stored: then these are the loads above, where those took all inputs.
        weight = load_weight(projection_weight_ptr, outputs, is_output, channels, n_channels)
        dzn = tl.dot(dprojection, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
        weight = load_weight(gate_weight_ptr, outputs, is_output, channels, n_channels)
        dzn = tl.dot(dgate, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
        store_rows(dprojections + side * n_hidden, dprojection, j, hidden, n_residues, n_hidden)
        store_rows(dprojections + (2 + side) * n_hidden, dgate, j, hidden, n_residues, n_hidden)
        store_partial(partials + 2 * n_channels, outputs, is_output, dprojection)
        store_partial(partials + 2 * n_channels + 2 * n_hidden, outputs, is_output, dgate)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    mean, inverse_deviation = load_statistics(z, j, channels, n_residues, n_channels, None, eps, COMPUTE)
    standard = load_standard(z, mean, inverse_deviation, j, channels, n_residues, n_channels, None, COMPUTE)
    is_channel = channels < n_channels
    store_partial(partials, channels, is_channel, dzn * standard)
    store_partial(partials + n_channels, channels, is_channel, dzn)
    norm_weight = load_vector(norm_weight_ptr, channels, is_channel, COMPUTE)
    dz = norm_gradient(dzn, standard, inverse_deviation, norm_weight, n_channels)
    dz_starts = starts_of_pairs(dz_ptr, batch, i, j, dz_batch_stride * UNIT, dz_i_stride * UNIT, dz_j_stride * UNIT)
    store_rows(dz_starts, dz, j, channels, n_residues, n_channels)


@kernels("triangle_multiply_backward")
def backward(
    dy: Tensor, a: Tensor, b: Tensor, x: Tensor, z: Tensor, mask: Tensor | None, norm_weight: Tensor,
    norm_bias: Tensor, projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor,
    gate_bias: Tensor | None, output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor,
    output_bias: Tensor | None, output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool,
    eps: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dz; the gradients of projection, gate and output gate weights, one under the other; that of the output weight;
    and one after the other those of the output norm's weight and bias, the output's bias, its gate's, the norm's weight
    and bias, the projection's bias and the gate's."""
    return empty_gradients(z, output_weight)


def empty_gradients(z: Tensor, output_weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    channels, hidden = output_weight.shape
    return (
        torch.empty_like(z), z.new_empty(4 * hidden + channels, channels), z.new_empty(channels, hidden),
        z.new_empty(6 * hidden + 4 * channels),
    )  # fmt: skip


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, a: Operand, b: Operand, x: Operand, *arguments: object
) -> tuple[Operand, ...]:  # fmt: skip
    problem = Problem(*arguments)  # type: ignore[arg-type]  # in the order of the declaration
    dz = plan.empty_like(problem.z)
    if suits_hopper(plan, problem, dy, dz):
        return _plan_hopper_backward(plan, problem, dy, a, b, x, dz)
    return _plan_portable_backward(plan, problem, dy, a, b, x, dz)


def _plan_hopper_backward(
    plan: Plan, problem: Problem, dy: Operand, a: Operand, b: Operand, x: Operand, dz: Operand
) -> tuple[Operand, ...]:
    dtype, channels, hidden = problem.z.dtype, problem.channels, problem.hidden
    dprojections = plan.empty((*problem.z.shape[:3], 4 * hidden + channels), dtype)
    dx = plan.empty(problem.matrices_shape(), dtype)
    doutput, xs, zs, inverse = hopper_backward.plan_output_gradient(plan, problem, dy, x, dx, dprojections, dz)
    output_moments = plan_moments(plan, problem, doutput, xs)
    da, db = (_in_place_of(plan, problem, done_with) for done_with in (doutput, xs))
    _plan_product_gradient(plan, problem, dx, a, b, da, db)
    hopper_backward.plan_project_gradient(plan, problem, da, db, zs, inverse, dprojections, dz)
    moments = plan_moments(plan, problem, dprojections, zs)
    return dz, *plan_weight_gradients(plan, problem, moments, output_moments)


def _plan_portable_backward(
    plan: Plan, problem: Problem, dy: Operand, a: Operand, b: Operand, x: Operand, dz: Operand
) -> tuple[Operand, ...]:
    dtype, channels, hidden = problem.z.dtype, problem.channels, problem.hidden
    pairs = (problem.batch, problem.residues, problem.residues)
    dprojections = plan.empty((*pairs, 4 * hidden + channels), dtype)
    dx = plan.empty(problem.matrices_shape(), dtype)
    output_config, project_config = (choose_rows(plan, problem, f"{side} gradient") for side in ("output", "project"))
    # Of as many rows, since their programs share rows of partial sums: one launch adds up what both leave.
    project_config = replace(project_config, ROWS=output_config.ROWS)
    programs, width = problem.grid(output_config)[0], 6 * hidden + 4 * channels
    partials = plan.empty((programs, width), torch.promote_types(dtype, torch.float32))
    doutput, zn, xn = _plan_output_gradient(plan, problem, output_config, dy, x, dx, dprojections, partials)
    doutput_weight = problem.plan_weight_gradient(plan, *(_as_matrix(problem, one) for one in (doutput, xn)))
    da, db = (_in_place_of(plan, problem, done_with) for done_with in (doutput, xn))
    _plan_product_gradient(plan, problem, dx, a, b, da, db)
    _plan_project_gradient(plan, problem, project_config, da, db, zn, dprojections, partials, dz)
    sums = plan.empty((width,), dtype)
    plan_sum_of_partials(plan, partials, sums, compute(problem))
    dweights = problem.plan_weight_gradient(plan, *(_as_matrix(problem, one) for one in (dprojections, zn)))
    return dz, dweights, doutput_weight, sums


def _plan_product_gradient(
    plan: Plan, problem: Problem, dx: Operand, a: Operand, b: Operand, da: Operand, db: Operand
) -> None:
    """da and db are filled."""
    if problem.outgoing:
        problem.plan_product(plan, dx, b, da, turned="")
        problem.plan_product(plan, dx, a, db, turned="left")
    else:
        problem.plan_product(plan, b, dx, da, turned="right")
        problem.plan_product(plan, a, dx, db, turned="")


def _as_matrix(problem: Problem, of_pairs: Operand) -> Operand:
    columns = of_pairs.shape[3]
    return of_pairs.seen_as((problem.pairs, columns), (columns, 1))


def _in_place_of(plan: Plan, problem: Problem, done_with: Operand) -> Operand:
    """Memory for a matrix for each hidden channel: that of what is no longer needed, if it is as much."""
    shape = problem.matrices_shape()
    if prod(shape) > prod(done_with.shape):
        return plan.empty(shape, done_with.dtype)
    _, hidden, residues, row = shape
    return done_with.seen_as(shape, (hidden * residues * row, residues * row, row, 1))


def _plan_output_gradient(
    plan: Plan, problem: Problem, config: RowsConfig, dy: Operand, x: Operand, dx: Operand, dprojections: Operand,
    partials: Operand,
) -> tuple[Operand, Operand, Operand]:  # fmt: skip
    """do, zn and xn; dx, the last columns of dprojections and the first of the partial sums are filled."""
    pairs = problem.z.shape[:3]
    doutput, zn = (plan.empty((*pairs, problem.channels), problem.z.dtype) for _ in range(2))
    xn = plan.empty((*pairs, problem.hidden), problem.z.dtype)
    plan.launch(
        triangle_output_gradient_kernel, problem.grid(config), config,
        **problem.arguments(
            plan, "z", "norm_weight", "norm_bias", "output_norm_weight", "output_norm_bias", "output_weight",
            "output_bias", "output_gate_weight", "output_gate_bias",
            dy=dy, x=x, dx=dx, zn=zn, xn=xn, doutput=doutput, dprojections=dprojections, partials=partials,
        ),
    )  # fmt: skip
    return doutput, zn, xn


def _plan_project_gradient(
    plan: Plan, problem: Problem, config: RowsConfig, da: Operand, db: Operand, zn: Operand, dprojections: Operand,
    partials: Operand, dz: Operand,
) -> None:  # fmt: skip
    """dz, dprojections and the partial sums are filled."""
    plan.launch(
        triangle_project_gradient_kernel, problem.grid(config), config,
        **problem.arguments(
            plan, "z", "mask", "norm_weight", "projection_weight", "projection_bias", "gate_weight", "gate_bias",
            "output_gate_weight", da=da, db=db, dz=dz, zn=zn, dprojections=dprojections, partials=partials,
        ),
    )  # fmt: skip
