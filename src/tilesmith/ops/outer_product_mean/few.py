"""The forward for few sequences, where single precision must be exact: no outer product is ever made.

With n residues, s sequences, c channels and o outputs, z_ij = Σ over s of a_si · (W · b_sj) takes 2·n²·s·c·o flops for
the pairs and as many for W · b as n has to n². With outer products that would be 2·n²·c²·(s + o), which is more where
there are fewer than c·o / (o − c) sequences. Both are products of large matrices; what lies between them is s·c/n times
the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.matmul.inside import product
from tilesmith.ops.outer_product_mean.forward import result_shape
from tilesmith.ops.outer_product_mean.shares import shares
from tilesmith.ops.runtime.composed import as_given
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.elementwise import compute_dtype
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import must_be_exact

MOST_BETWEEN = 1 << 25  # elements of W · b: the result may be far smaller, and is all that others make


def is_for_few(a: Tensor, weight: Tensor | None) -> bool:
    """Whether this way is right for such a call, and takes fewer flops."""
    if weight is None or a.ndim != 4 or weight.ndim != 2 or not must_be_exact(a):
        return False
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    fewer = sequences * outputs * (residues + channels) < residues * channels * (sequences + outputs)
    return fewer and batch * sequences * channels * outputs * residues <= MOST_BETWEEN


@triton.jit(do_not_specialize=["n_residues"])
def outer_product_finish_kernel(
    source_ptr, share_ptr, bias_ptr, z_ptr, n_residues, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """[…, outputs, j] → […, j, outputs], with the bias added and times the share of each pair."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    outputs = tl.program_id(2) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_j, is_output = j < n_residues, outputs < n_outputs
    start = row * n_residues * n_outputs
    pointers = source_ptr + start + outputs[:, None] * n_residues + j[None, :]
    sums = tl.trans(tl.load(pointers, mask=is_output[:, None] & is_j[None, :], other=0.0).to(COMPUTE))
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(COMPUTE)[None, :]
    share = tl.load(share_ptr + row * n_residues + j, mask=is_j, other=0.0).to(COMPUTE)[:, None]
    z_pointers = z_ptr + start + j[:, None] * n_outputs + outputs[None, :]
    tl.store(z_pointers, (sums * share).to(z_ptr.dtype.element_ty), mask=is_j[:, None] & is_output[None, :])


@dataclass(frozen=True)
class FinishConfig(Config):
    """Each program takes BLOCK_J pairs of one residue, and BLOCK_OUTPUTS of their outputs."""

    BLOCK_J: int = 64
    BLOCK_OUTPUTS: int = 64


@kernels("outer_product_mean_finished")
def finished(source: Tensor, share: Tensor, bias: Tensor | None) -> Tensor:
    """Of sums [rows, outputs, residues] and shares [rows, residues], without gaps: [rows, residues, outputs]."""
    rows, outputs, residues = source.shape
    return source.new_empty(rows, residues, outputs)


@finished.plan
def plan_finished(plan: Plan, source: Operand, share: Operand, bias: Operand | None) -> Operand:
    rows, outputs, residues = source.shape
    z = plan.empty((rows, residues, outputs), source.dtype)
    blocks = min(bucket(residues), 64), min(bucket(outputs), 64)
    default = FinishConfig(num_warps=8, BLOCK_J=blocks[0], BLOCK_OUTPUTS=blocks[1])
    config = plan.choose(default, bucket(residues), bucket(outputs), source.dtype)
    plan.launch(
        outer_product_finish_kernel,
        (rows, triton.cdiv(residues, config.BLOCK_J), triton.cdiv(outputs, config.BLOCK_OUTPUTS)), config,
        source_ptr=source, share_ptr=share, bias_ptr=bias, z_ptr=z, n_residues=residues, n_outputs=outputs,
        COMPUTE=compute_dtype(source.dtype),
    )  # fmt: skip
    return z


@kernels("outer_product_mean_few_forward")
def forward(
    a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None, eps: float,
    tf32: bool,
) -> Tensor:  # fmt: skip
    return a.new_empty(result_shape(a.shape, weight.shape[0]))


@forward.composed
def compute_forward(
    a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None, eps: float,
    tf32: bool,
) -> Tensor:  # fmt: skip
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    with as_given(a):
        if mask is not None:
            a, b = (one.masked_fill(~mask[..., None], 0.0) for one in (a, b))
        by_channel = weight.reshape(outputs, channels, channels).transpose(0, 1).reshape(channels * outputs, channels)
        of_residues = b.flatten(0, 1).transpose(1, 2)
        between = product(by_channel.expand(batch * sequences, -1, -1), of_residues)
        left = a.transpose(1, 2).reshape(batch, residues, sequences * channels)
        sums = product(left, between.view(batch, sequences * channels, outputs * residues))
        share = shares(a, mask, eps).view(batch * residues, residues)
        z = finished(sums.view(batch * residues, outputs, residues), share, None if bias is None else bias.contiguous())
    return z.view(batch, residues, residues, outputs)  # type: ignore[no-any-return]  # Kernels return what they say
