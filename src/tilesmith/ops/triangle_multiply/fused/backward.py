"""The portable backward kernels: from dy through the product to dz and the gradients of all parameters.

With s = σ(output gate) and o the output before its gate: do = dy · s, and the gate's gradient is dy · o · s · (1 − s).
The gradient of the product x is that of a norm. The product's GEMMs give da and db. With t = σ(gate) and p the
projection, the gradients of p and of the gate are da · t and da · p · t · (1 − t). The gradients of all gates and
projections, times their weights, add up to the gradient of zn. dz is the gradient of a norm again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from tilesmith.ops.device.channels import load_vector, norm_gradient, store_partial
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.plan import Operand
from tilesmith.ops.triangle_multiply.fused.config import choose_rows, grid
from tilesmith.ops.triangle_multiply.fused.rows import (
    NOT_SPECIALISED,
    is_unmasked,
    load_normed,
    load_rows,
    load_standard,
    load_statistics,
    load_weight,
    pairs_of_program,
    project_norm,
    starts_in_matrices,
    starts_of_pairs,
    starts_of_rows,
    store_channels,
    store_rows,
)
from tilesmith.ops.triangle_multiply.problem import Gradients


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
    """Write dx, zn, xn, do, and the output gate's gradient, the last columns of `dprojections`. GEMMs of zn, xn, do and
    `dprojections` make the weights' gradients. Partial sums: output norm's weight and bias, output bias, output gate
    bias."""
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    dy = starts_of_pairs(dy_ptr, batch, i, j, dy_batch_stride * UNIT, dy_i_stride * UNIT, dy_j_stride * UNIT)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    x, channel_stride = starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, True)
    z_rows, x_rows = (z, j, n_residues, None), (x, j, n_residues, channel_stride)
    doutputs = starts_of_rows(doutput_ptr, batch, i, j, n_residues, n_channels)
    dgates = starts_of_rows(dprojections_ptr, batch, i, j, n_residues, 4 * n_hidden + n_channels) + 4 * n_hidden
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (6 * n_hidden + 4 * n_channels)
    channels, hidden = tl.arange(0, BLOCK_CHANNELS), tl.arange(0, BLOCK_HIDDEN)
    zn, norm = load_normed(  # [ROWS, BLOCK_CHANNELS]
        z_rows, norm_weight_ptr, norm_bias_ptr, channels, n_channels, eps, z_ptr.dtype.element_ty, COMPUTE
    )
    xn, output_norm = load_normed(  # [ROWS, BLOCK_HIDDEN]
        x_rows, output_norm_weight_ptr, output_norm_bias_ptr, hidden, n_hidden, eps, z_ptr.dtype.element_ty, COMPUTE
    )
    output_gate, output_layer = (output_gate_weight_ptr, output_gate_bias_ptr), (output_weight_ptr, output_bias_ptr)
    z_source, x_source = (zn, z_rows, norm), (xn, x_rows, output_norm)
    store_rows(starts_of_rows(zn_ptr, batch, i, j, n_residues, n_channels), zn, j, channels, n_residues, n_channels)
    store_rows(starts_of_rows(xn_ptr, batch, i, j, n_residues, n_hidden), xn, j, hidden, n_residues, n_hidden)
    dxn = tl.zeros([ROWS, BLOCK_HIDDEN], COMPUTE)  # [ROWS, BLOCK_HIDDEN]
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        is_output = outputs < n_channels
        gate, _ = project_norm(  # [ROWS, BLOCK_OUTPUTS]
            z_source, output_gate, (None, None), outputs, is_output, n_channels, COMPUTE, PRECISION, BLOCK_INPUTS
        )
        output, _ = project_norm(  # [ROWS, BLOCK_OUTPUTS]
            x_source, output_layer, (None, None), outputs, is_output, n_hidden, COMPUTE, PRECISION, BLOCK_INPUTS
        )
        opening = tl.sigmoid(gate)
        doutput = load_rows((dy, j, n_residues, None), outputs, n_channels).to(COMPUTE) * opening
        dgate = (doutput * output * (1 - opening)).to(zn.dtype)
        doutput = doutput.to(zn.dtype)
        # Before any store: then the compiler reuses the load in project_norm, where that takes all inputs.
        weight = load_weight(output_weight_ptr, outputs, is_output, hidden, n_hidden)  # [BLOCK_HIDDEN, BLOCK_OUTPUTS]
        dxn = tl.dot(doutput, tl.trans(weight), dxn, input_precision=PRECISION, out_dtype=COMPUTE)
        store_rows(doutputs, doutput, j, outputs, n_residues, n_channels)
        store_rows(dgates, dgate, j, outputs, n_residues, n_channels)
        store_partial(partials + 2 * n_hidden, outputs, is_output, doutput)
        store_partial(partials + 2 * n_hidden + n_channels, outputs, is_output, dgate)
    _, _, mean, inverse_deviation = output_norm
    standard = load_standard(x_rows, mean, inverse_deviation, hidden, n_hidden, COMPUTE)  # [ROWS, BLOCK_HIDDEN]
    is_hidden = hidden < n_hidden
    store_partial(partials, hidden, is_hidden, dxn * standard)
    store_partial(partials + n_hidden, hidden, is_hidden, dxn)
    norm_weight = load_vector(output_norm_weight_ptr, hidden, is_hidden, COMPUTE)
    dx = norm_gradient(dxn, standard, inverse_deviation, norm_weight, n_hidden)
    dx_starts, channel_stride = starts_in_matrices(dx_ptr, batch, i, j, n_residues, n_hidden, True)
    store_channels(dx_starts, dx, j, hidden, n_residues, n_hidden, channel_stride)


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
    """Write dz and the gradients of projections and gates. A GEMM of these makes their weights' gradients.

    Partial sums: the norm's weight and bias, projection bias, gate bias.

    zn is read from memory: the tensor cores then take it from shared memory, and registers stay free for the sums.
    """
    n_residues, n_channels, n_hidden = n_residues * RESIDUES_UNIT, n_channels * UNIT, n_hidden * UNIT
    batch, i, j = pairs_of_program(n_residues, ROWS)
    da, channel_stride = starts_in_matrices(da_ptr, batch, i, j, n_residues, n_hidden, True)
    db, _ = starts_in_matrices(db_ptr, batch, i, j, n_residues, n_hidden, True)
    dprojections = starts_of_rows(dprojections_ptr, batch, i, j, n_residues, 4 * n_hidden + n_channels)
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (6 * n_hidden + 4 * n_channels)
    partials += 2 * n_hidden + 2 * n_channels
    channels = tl.arange(0, BLOCK_CHANNELS)
    zn_rows = (starts_of_rows(zn_ptr, batch, i, j, n_residues, n_channels), j, n_residues, None)
    zn = load_rows(zn_rows, channels, n_channels)  # [ROWS, BLOCK_CHANNELS]
    if mask_ptr is not None:
        unmasked = is_unmasked(mask_ptr, j, batch, i, n_residues, mask_batch_stride, mask_i_stride, mask_j_stride)
    dzn = tl.zeros([ROWS, BLOCK_CHANNELS], COMPUTE)  # [ROWS, BLOCK_CHANNELS]
    for start in range(0, n_channels, BLOCK_OUTPUTS):
        outputs = start + tl.arange(0, BLOCK_OUTPUTS)
        dgate = load_rows((dprojections + 4 * n_hidden, j, n_residues, None), outputs, n_channels)
        weight = load_weight(output_gate_weight_ptr, outputs, outputs < n_channels, channels, n_channels)
        dzn = tl.dot(dgate, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
    blocks = tl.cdiv(n_hidden, BLOCK_OUTPUTS)
    for step in range(2 * blocks):
        side = step // blocks
        hidden = step % blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        outputs, is_output = side * n_hidden + hidden, hidden < n_hidden
        projection, gate = project_norm(  # [ROWS, BLOCK_OUTPUTS] each
            (zn, zn_rows, (None, None, None, None)), (projection_weight_ptr, projection_bias_ptr),
            (gate_weight_ptr, gate_bias_ptr), outputs, is_output, n_channels, COMPUTE, PRECISION, BLOCK_INPUTS,
        )  # fmt: skip
        opening = tl.sigmoid(gate)
        dgated_rows = (tl.where(side == 0, da, db), j, n_residues, channel_stride)
        dgated = load_rows(dgated_rows, hidden, n_hidden).to(COMPUTE)  # [ROWS, BLOCK_OUTPUTS]
        if mask_ptr is not None:
            dgated = tl.where(unmasked, dgated, 0.0)
        dprojection = dgated * opening
        dgate = dprojection * projection * (1 - opening)
        dprojection, dgate = dprojection.to(zn.dtype), dgate.to(zn.dtype)
        # Before any store: then the compiler reuses the loads in project_norm, where those take all inputs.
        weight = load_weight(projection_weight_ptr, outputs, is_output, channels, n_channels)  # [CHANNELS, OUTPUTS]
        dzn = tl.dot(dprojection, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
        weight = load_weight(gate_weight_ptr, outputs, is_output, channels, n_channels)
        dzn = tl.dot(dgate, tl.trans(weight), dzn, input_precision=PRECISION, out_dtype=COMPUTE)
        store_rows(dprojections + side * n_hidden, dprojection, j, hidden, n_residues, n_hidden)
        store_rows(dprojections + (2 + side) * n_hidden, dgate, j, hidden, n_residues, n_hidden)
        store_partial(partials + 2 * n_channels, outputs, is_output, dprojection)
        store_partial(partials + 2 * n_channels + 2 * n_hidden, outputs, is_output, dgate)
    z = starts_of_pairs(z_ptr, batch, i, j, z_batch_stride * UNIT, z_i_stride * UNIT, z_j_stride * UNIT)
    z_rows = (z, j, n_residues, None)
    mean, inverse_deviation = load_statistics(z_rows, channels, n_channels, eps, COMPUTE)  # [ROWS, 1]
    standard = load_standard(z_rows, mean, inverse_deviation, channels, n_channels, COMPUTE)  # [ROWS, BLOCK_CHANNELS]
    is_channel = channels < n_channels
    store_partial(partials, channels, is_channel, dzn * standard)
    store_partial(partials + n_channels, channels, is_channel, dzn)
    norm_weight = load_vector(norm_weight_ptr, channels, is_channel, COMPUTE)
    dz = norm_gradient(dzn, standard, inverse_deviation, norm_weight, n_channels)
    dz_starts = starts_of_pairs(dz_ptr, batch, i, j, dz_batch_stride * UNIT, dz_i_stride * UNIT, dz_j_stride * UNIT)
    store_rows(dz_starts, dz, j, channels, n_residues, n_channels)


class PortableBackward:
    """Every problem, on every GPU."""

    def takes(self, task: Gradients) -> bool:
        return True

    def suits(self, task: Gradients) -> bool:
        return True

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        """Plan the kernels that write dz. Return dz and the parameters' gradients as `split_gradients` takes them."""
        plan, problem, dy, a, b, x, dz = task.plan, task.problem, task.dy, task.a, task.b, task.x, task.dz
        dtype, channels, hidden, pairs = problem.z.dtype, problem.channels, problem.hidden, problem.z.shape[:3]
        dprojections = plan.empty((*pairs, 4 * hidden + channels), dtype)
        dx = plan.empty(problem.matrices_shape(), dtype)
        output_config = choose_rows(plan, problem, "output gradient")
        project_config = choose_rows(plan, problem, "project gradient")
        # The same ROWS for both: their programs share rows of partial sums, and one launch adds up all of them.
        project_config = replace(project_config, ROWS=output_config.ROWS)
        (programs,), width = grid(problem, output_config), 6 * hidden + 4 * channels
        partials = plan.empty((programs, width), torch.promote_types(dtype, torch.float32))
        doutput, zn = (plan.empty((*pairs, channels), dtype) for _ in range(2))
        xn = plan.empty((*pairs, hidden), dtype)
        plan.launch(
            triangle_output_gradient_kernel, (programs,), output_config,
            **problem.arguments(
                plan, triangle_output_gradient_kernel,
                dy=dy, x=x, dx=dx, zn=zn, xn=xn, doutput=doutput, dprojections=dprojections, partials=partials,
            ),
        )  # fmt: skip
        doutput_weight = problem.plan_weight_gradient(plan, doutput, xn)
        da, db = (problem.matrices_in_place_of(plan, unneeded) for unneeded in (doutput, xn))
        problem.plan_ab_gradient(plan, dx, a, b, da, db)
        plan.launch(
            triangle_project_gradient_kernel, grid(problem, project_config), project_config,
            **problem.arguments(
                plan, triangle_project_gradient_kernel,
                da=da, db=db, dz=dz, zn=zn, dprojections=dprojections, partials=partials,
            ),
        )  # fmt: skip
        dvectors = plan.empty((width,), dtype)
        plan_sum_of_partials(plan, partials, dvectors, compute_dtype(dtype))
        dweights = problem.plan_weight_gradient(plan, dprojections, zn)
        return dz, dweights, doutput_weight, dvectors
