"""The forward for few sequences, where single precision must be exact: no outer product is ever made.

With n residues, s sequences, c channels and o outputs, z_ij = Σ over s of a_si · (W · b_sj) takes 2·n²·s·c·o flops for
the pairs and as many for W · b as n has to n². With outer products that would be 2·n²·c²·(s + o), which is more where
there are fewer than c·o / (o − c) sequences. Both are products of large matrices; what lies between them is s·c/n times
the result. The gradients are in `few_backward`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.forward import result_shape
from tilesmith.ops.outer_product_mean.pair_weights import share_of_all, shares
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import must_be_exact
from tilesmith.ops.runtime.without_autocast import without_autocast

MOST_BETWEEN = 1 << 25  # elements of W · b: the result may be far smaller, and is all that others make


def is_possible(a: Tensor, weight: Tensor | None) -> bool:
    """Whether such a call can be computed without outer products, whether that is less work or not."""
    return weight is not None and a.ndim == 4 and weight.ndim == 2 and must_be_exact(a)


def is_for_few(a: Tensor, weight: Tensor | None) -> bool:
    """Whether this way is right for such a call, and takes fewer flops."""
    if weight is None or not is_possible(a, weight):
        return False
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    fewer = sequences * outputs * (residues + channels) < residues * channels * (sequences + outputs)
    return fewer and batch * sequences * channels * outputs * residues <= MOST_BETWEEN


@triton.jit
def times_share(values, share_ptr, share_of_all, row, j, n_residues):
    """Rows of values times the share of one residue with each of these, or without such shares the one of all."""
    if share_ptr is not None:
        values *= tl.load(share_ptr + row * n_residues + j, mask=j < n_residues, other=0.0)[:, None]
    else:
        values *= share_of_all
    return values


@triton.jit
def outer_product_finish_kernel(
    source_ptr, share_ptr, bias_ptr, z_ptr, share_of_all, n_residues, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """[…, outputs, j] → […, j, outputs], with the bias added and times the share of each pair, or of all."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    outputs = tl.program_id(2) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_j, is_output = j < n_residues, outputs < n_outputs
    start = row * n_residues * n_outputs
    pointers = source_ptr + start + outputs[:, None] * n_residues + j[None, :]
    sums = tl.trans(tl.load(pointers, mask=is_output[:, None] & is_j[None, :], other=0.0).to(COMPUTE))
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(COMPUTE)[None, :]
    sums = times_share(sums, share_ptr, share_of_all, row, j, n_residues)
    z_pointers = z_ptr + start + j[:, None] * n_outputs + outputs[None, :]
    tl.store(z_pointers, sums.to(z_ptr.dtype.element_ty), mask=is_j[:, None] & is_output[None, :])


@dataclass(frozen=True)
class FinishConfig(Config):
    """Each program takes BLOCK_J pairs of one residue, and BLOCK_OUTPUTS of their outputs."""

    BLOCK_J: int = 64
    BLOCK_OUTPUTS: int = 64


def finish_config(residues: int, outputs: int) -> FinishConfig:
    return FinishConfig(num_warps=8, BLOCK_J=min(bucket(residues), 64), BLOCK_OUTPUTS=min(bucket(outputs), 64))


@kernels("outer_product_mean_finished")
def finished(source: Tensor, share: Tensor | None, bias: Tensor | None, share_of_all: float) -> Tensor:
    """Of sums [rows, outputs, residues] and shares [rows, residues], without gaps: [rows, residues, outputs]. Where all
    have the same share, only that is given."""
    rows, outputs, residues = source.shape
    return source.new_empty(rows, residues, outputs)


@finished.plan
def plan_finished(
    plan: Plan, source: Operand, share: Operand | None, bias: Operand | None, share_of_all: float
) -> Operand:
    rows, outputs, residues = source.shape
    z = plan.empty((rows, residues, outputs), source.dtype)
    config = plan.choose(finish_config(residues, outputs), bucket(residues), bucket(outputs), source.dtype)
    plan.launch(
        outer_product_finish_kernel,
        (rows, triton.cdiv(residues, config.BLOCK_J), triton.cdiv(outputs, config.BLOCK_OUTPUTS)), config,
        source_ptr=source, share_ptr=share, bias_ptr=bias, z_ptr=z, share_of_all=share_of_all, n_residues=residues,
        n_outputs=outputs, COMPUTE=compute_dtype(source.dtype),
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
    with without_autocast(a):
        sides = Sides(a, b, mask, weight, eps)
        between = sides.between().view(batch, sequences * channels, outputs * residues)
        sums = product(sides.left, between).view(batch * residues, outputs, residues)
        z = finished(sums, sides.share, None if bias is None else bias.contiguous(), sides.share_of_all)
    return z.view(batch, residues, residues, outputs)  # type: ignore[no-any-return]  # Kernels return what they say


class Sides:
    """What the products of forward and backward are made of, masked.

    - `left`: a as [batch, residues, sequences · channels];
    - `right`: b as [batch · sequences, residues, channels];
    - `weight`: as [channels of a · outputs, channels of b], one for all of the batch and its sequences;
    - `share`: of every pair, [batch · residues, residues], or None where all have `share_of_all`.
    """

    def __init__(self, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, eps: float) -> None:
        batch, sequences, residues, channels = a.shape
        if mask is not None:
            a, b = (one.masked_fill(~mask[..., None], 0.0) for one in (a, b))
        self.left = a.transpose(1, 2).reshape(batch, residues, sequences * channels)
        self.right = b.flatten(0, 1)
        by_channel = weight.reshape(-1, channels, channels).transpose(0, 1).reshape(-1, channels)
        self.weight = by_channel.expand(batch * sequences, -1, -1)
        self.share = None if mask is None else shares(a, mask, eps).view(batch * residues, residues)
        self.share_of_all = share_of_all(sequences, eps)

    def between(self) -> Tensor:
        """W · b, [batch · sequences, channels of a · outputs, residues]."""
        return product(self.weight, self.right.transpose(1, 2))
