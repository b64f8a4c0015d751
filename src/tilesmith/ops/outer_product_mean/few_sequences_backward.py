"""The backward for few sequences in exact single precision: without outer products.

With t_sj = W · b_sj as in the forward, and g = dz / (eps + count): dt_sj = Σ over i of a_si · g_ij, da_si = Σ over j of
g_ij · t_sj, db = Wᵀ · dt, dW = Σ over sequences and residues of dt · b, dbias = Σ over pairs of g.

With n residues, s sequences, c channels and o outputs, dt and da take 2·n²·s·c·o flops each; t, db and dW take
2·n·s·c²·o. Outer products take 2·n²·c²·(3·s + 2·o), for themselves, da, db, their own gradient and dW. Keeping t from
the forward would save one GEMM of five, and hold s·c/n times the result in memory.

Both t and dt are [member, sequence, channel of a, output, residue]. The GEMMs with a and g see the first three as rows
and the last two as columns. The GEMMs with W and b see one matrix for each sequence. So no pass changes the layout
between two GEMMs. Only g, which has its own pass anyway, is written with the residues innermost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.backward import Wanted
from tilesmith.ops.outer_product_mean.few_sequences_forward import (
    MOST_PROJECTED_B,
    Operands,
    epilogue_config,
    is_possible,
    times_factor,
)
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


def is_for_few(a: Tensor, weight: Tensor | None) -> bool:
    """Return whether these kernels can compute the gradients with fewer flops."""
    if weight is None or not is_possible(a, weight):
        return False
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    without = sequences * outputs * (2 * residues + 3 * channels)
    fewer = without < residues * channels * (3 * sequences + 2 * outputs)
    # t and dt have a column for each residue, the partial sums of dW one for each channel.
    return fewer and batch * sequences * channels * outputs * max(residues, channels) <= MOST_PROJECTED_B


@triton.jit
def outer_product_scale_transpose_kernel(
    dz_ptr, factors_ptr, transposed_ptr, partials_ptr, dz_strides, common_factor, n_residues, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Write […, j, outputs] as […, outputs, j], times the factor of each pair, and partial sums over j."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    outputs = tl.program_id(2) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_j, is_output = j < n_residues, outputs < n_outputs
    dz_ptr += row // n_residues * dz_strides[0] + row % n_residues * dz_strides[1]
    dz_offsets = (j.to(tl.int64) * dz_strides[2])[:, None] + (outputs.to(tl.int64) * dz_strides[3])[None, :]
    scaled = tl.load(dz_ptr + dz_offsets, mask=is_j[:, None] & is_output[None, :], other=0.0).to(COMPUTE)
    scaled = times_factor(scaled, factors_ptr, common_factor, row, j, n_residues)
    partial = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(partials_ptr + partial * n_outputs + outputs, tl.sum(scaled, axis=0), mask=is_output)
    pointers = transposed_ptr + row * n_residues * n_outputs + outputs[:, None] * n_residues + j[None, :]
    transposed = tl.trans(scaled).to(transposed_ptr.dtype.element_ty)  # [BLOCK_OUTPUTS, BLOCK_J]
    tl.store(pointers, transposed, mask=is_output[:, None] & is_j[None, :])


@kernels("outer_product_mean_scaled_transposed")
def scaled_transposed(dz: Tensor, factors: Tensor | None, common_factor: float) -> tuple[Tensor, Tensor]:
    """Return dz, [batch, residues, residues, outputs], times contiguous factors, [batch · residues, residues], as
    [batch, residues, outputs · residues], and the sum over all pairs. Without factors, all pairs have the common
    factor."""
    batch, residues, _, outputs = dz.shape
    return dz.new_empty(batch, residues, outputs * residues), dz.new_empty(outputs)


@scaled_transposed.plan
def plan_scaled_transposed(
    plan: Plan, dz: Operand, factors: Operand | None, common_factor: float
) -> tuple[Operand, Operand]:
    batch, residues, _, outputs = dz.shape
    result, total = plan.empty((batch, residues, outputs * residues), dz.dtype), plan.empty((outputs,), dz.dtype)
    config = plan.choose(epilogue_config(residues, outputs), bucket(residues), bucket(outputs), dz.dtype)
    blocks_of_j = triton.cdiv(residues, config.BLOCK_J)
    compute = compute_dtype(dz.dtype)
    partials = plan.empty((batch * residues * blocks_of_j, outputs), dz.dtype)
    grid = (batch * residues, blocks_of_j, triton.cdiv(outputs, config.BLOCK_OUTPUTS))
    plan.launch(
        outer_product_scale_transpose_kernel, grid, config,
        dz_ptr=dz, factors_ptr=factors, transposed_ptr=result, partials_ptr=partials, dz_strides=dz.strides,
        common_factor=common_factor, n_residues=residues, n_outputs=outputs, COMPUTE=compute,
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, total, compute)
    return result, total


@kernels("outer_product_mean_few_backward")
@flat_arguments
def backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None,
    eps: float, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return da, db, dweight and dbias, empty where they are not wanted.

    da has the layout of its GEMM: sequences next to channels.
    """
    batch, sequences, residues, channels = a.shape
    da = a.new_empty(batch, residues, sequences, channels).transpose(1, 2) if wanted.a_gradient else a.new_empty(0)
    db = a.new_empty(b.shape if wanted.b_gradient else 0)
    dweight = a.new_empty(weight.shape if wanted.weight_gradient else 0)
    return da, db, dweight, a.new_empty(bias.shape if bias is not None and wanted.bias_gradient else 0)


@backward.composed
@flat_arguments
def compute_backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None,
    eps: float, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    da, db, dweight, dbias = (a.new_empty(0) for _ in range(4))
    with without_autocast(a), SideStream(a) as side_stream:
        operands = Operands(a, b, mask, weight, eps)
        scaled, total = scaled_transposed(dz, operands.factors, operands.common_factor)
        if wanted.bias_gradient:
            dbias = total
        if wanted.b_gradient or wanted.weight_gradient:
            dprojected_b = product(operands.left.mT, scaled).view(batch * sequences, channels * outputs, residues)
            if wanted.weight_gradient:
                dweight = side_stream(gradient_of_weight, dprojected_b, operands.right)
            if wanted.b_gradient:
                db = product(dprojected_b.mT, operands.weight).view(b.shape)
        if wanted.a_gradient:
            projected_b = operands.projected_b().view(batch, sequences * channels, outputs * residues)
            da = product(scaled, projected_b.mT).view(batch, residues, sequences, channels).transpose(1, 2)
        for gradient, is_wanted in ((da, wanted.a_gradient), (db, wanted.b_gradient)):
            if mask is not None and is_wanted:
                gradient.masked_fill_(~mask[..., None], 0.0)
    return da, db, dweight, dbias


def gradient_of_weight(dprojected_b: Tensor, right: Tensor) -> Tensor:
    """Return Σ over sequences of dt · b in the weight's layout, [outputs, channels · channels]."""
    channels = right.shape[2]
    of_sequences = product(dprojected_b, right).unflatten(1, (channels, -1))
    dweight = right.new_empty(of_sequences.shape[2], channels, channels)
    torch.sum(of_sequences, 0, out=dweight.transpose(0, 1))
    return dweight.flatten(1)
