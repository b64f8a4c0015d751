"""The gradients for few sequences, where single precision must be exact: no outer product is made here either.

With t_sj = W · b_sj as in the forward, and g = share · dz: dt_sj = Σ over i of a_si · g_ij, da_si = Σ over j of
g_ij · t_sj, db = Wᵀ · dt, dW = Σ over sequences and residues of dt · b, dbias = Σ over pairs of g.

With n residues, s sequences, c channels and o outputs, dt and da take 2·n²·s·c·o flops each; t, db and dW take
2·n·s·c²·o. With outer products it would be 2·n²·c²·(3·s + 2·o), for the outer products, da, db, their own gradient and
dW. To keep t from the forward would spare one product of the five, and hold s·c/n times the result until now.

Both t and dt lie as [member, sequence, channel of a, output, residue]. Seen as matrices of the first three against the
last two they meet a and g, and seen as one matrix for each sequence W and b: nothing is laid out anew between two
products. Only g, which is made in a pass of its own anyway, is written with the residues innermost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.few_sequences_forward import (
    MOST_BETWEEN,
    Sides,
    finish_config,
    is_possible,
    times_share,
)
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.side_stream import SideStream
from tilesmith.ops.runtime.without_autocast import without_autocast


def is_for_few(a: Tensor, weight: Tensor | None) -> bool:
    """Whether this way is right for the gradients of such a call, and takes fewer flops."""
    if weight is None or not is_possible(a, weight):
        return False
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    without = sequences * outputs * (2 * residues + 3 * channels)
    fewer = without < residues * channels * (3 * sequences + 2 * outputs)
    # t and dt are of the residues, what is added up to dW of the channels.
    return fewer and batch * sequences * channels * outputs * max(residues, channels) <= MOST_BETWEEN


@triton.jit
def outer_product_turn_kernel(
    dz_ptr, share_ptr, turned_ptr, partials_ptr, dz_strides, share_of_all, n_residues, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """[…, j, outputs] → […, outputs, j], times the share of each pair, or of all; and sums of that over blocks."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    outputs = tl.program_id(2) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_j, is_output = j < n_residues, outputs < n_outputs
    dz_ptr += row // n_residues * dz_strides[0] + row % n_residues * dz_strides[1]
    dz_offsets = (j.to(tl.int64) * dz_strides[2])[:, None] + (outputs.to(tl.int64) * dz_strides[3])[None, :]
    shared = tl.load(dz_ptr + dz_offsets, mask=is_j[:, None] & is_output[None, :], other=0.0).to(COMPUTE)
    shared = times_share(shared, share_ptr, share_of_all, row, j, n_residues)
    partial = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(partials_ptr + partial * n_outputs + outputs, tl.sum(shared, axis=0), mask=is_output)
    pointers = turned_ptr + row * n_residues * n_outputs + outputs[:, None] * n_residues + j[None, :]
    turned = tl.trans(shared).to(turned_ptr.dtype.element_ty)
    tl.store(pointers, turned, mask=is_output[:, None] & is_j[None, :])


@kernels("outer_product_mean_turned")
def turned(dz: Tensor, share: Tensor | None, share_of_all: float) -> tuple[Tensor, Tensor]:
    """dz [batch, residues, residues, outputs] times shares [batch · residues, residues], without gaps, as [batch,
    residues, outputs · residues]; and the sum of that over all pairs. Where all have the same share, only that is
    given."""
    batch, residues, _, outputs = dz.shape
    return dz.new_empty(batch, residues, outputs * residues), dz.new_empty(outputs)


@turned.plan
def plan_turned(plan: Plan, dz: Operand, share: Operand | None, share_of_all: float) -> tuple[Operand, Operand]:
    batch, residues, _, outputs = dz.shape
    result, total = plan.empty((batch, residues, outputs * residues), dz.dtype), plan.empty((outputs,), dz.dtype)
    config = plan.choose(finish_config(residues, outputs), bucket(residues), bucket(outputs), dz.dtype)
    blocks_of_j = triton.cdiv(residues, config.BLOCK_J)
    compute = compute_dtype(dz.dtype)
    partials = plan.empty((batch * residues * blocks_of_j, outputs), dz.dtype)
    plan.launch(
        outer_product_turn_kernel, (batch * residues, blocks_of_j, triton.cdiv(outputs, config.BLOCK_OUTPUTS)), config,
        dz_ptr=dz, share_ptr=share, turned_ptr=result, partials_ptr=partials, dz_strides=dz.strides,
        share_of_all=share_of_all, n_residues=residues, n_outputs=outputs, COMPUTE=compute,
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, total, compute)
    return result, total


@kernels("outer_product_mean_few_backward")
def backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None,
    eps: float, a_gradient: bool, b_gradient: bool, weight_gradient: bool, bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """da, db, dweight and dbias, empty where they are not wanted. da lies as its product makes it, with the sequences
    next to the channels."""
    batch, sequences, residues, channels = a.shape
    da = a.new_empty(batch, residues, sequences, channels).transpose(1, 2) if a_gradient else a.new_empty(0)
    db = a.new_empty(b.shape if b_gradient else 0)
    dweight = a.new_empty(weight.shape if weight_gradient else 0)
    return da, db, dweight, a.new_empty(bias.shape if bias is not None and bias_gradient else 0)


@backward.composed
def compute_backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None,
    eps: float, to_a: bool, to_b: bool, to_weight: bool, to_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    da, db, dweight, dbias = (a.new_empty(0) for _ in range(4))
    with without_autocast(a), SideStream(a) as side_stream:
        sides = Sides(a, b, mask, weight, eps)
        shared, total = turned(dz, sides.share, sides.share_of_all)
        if to_bias:
            dbias = total
        if to_b or to_weight:
            dbetween = product(sides.left.mT, shared).view(batch * sequences, channels * outputs, residues)
            if to_weight:
                dweight = side_stream(gradient_of_weight, dbetween, sides.right)
            if to_b:
                db = product(dbetween.mT, sides.weight).view(b.shape)
        if to_a:
            between = sides.between().view(batch, sequences * channels, outputs * residues)
            da = product(shared, between.mT).view(batch, residues, sequences, channels).transpose(1, 2)
        for gradient, is_wanted in ((da, to_a), (db, to_b)):
            if mask is not None and is_wanted:
                gradient.masked_fill_(~mask[..., None], 0.0)
    return da, db, dweight, dbias


def gradient_of_weight(dbetween: Tensor, right: Tensor) -> Tensor:
    """Σ over sequences of dt · b, as the weight is, with an output's channels in a row."""
    channels = right.shape[2]
    of_sequences = product(dbetween, right).unflatten(1, (channels, -1))
    dweight = right.new_empty(of_sequences.shape[2], channels, channels)
    torch.sum(of_sequences, 0, out=dweight.transpose(0, 1))
    return dweight.flatten(1)
