"""The forward for few sequences in exact single precision: without outer products.

With n residues, s sequences, c channels and o outputs, z_ij = Σ over s of a_si · (W · b_sj) takes 2·n²·s·c·o flops for
the pairs, and 1/n of that for each channel of W · b. Outer products take 2·n²·c²·(s + o) flops, which is more where
there are fewer than c·o / (o − c) sequences. Both steps are GEMMs of large matrices. The intermediate result W · b is
s·c/n times as large as z. The gradients are in `few_sequences_backward.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.forward import result_shape
from tilesmith.ops.outer_product_mean.inverse_counts import inverse_counts, unmasked_inverse_count
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import must_be_exact

MOST_PROJECTED_B = 1 << 25  # elements of W · b, which may be far larger than the result


def is_possible(a: Tensor, weight: Tensor | None) -> bool:
    """Return whether these kernels can compute the call, faster or not."""
    return weight is not None and a.ndim == 4 and weight.ndim == 2 and must_be_exact(a)


def is_for_few(a: Tensor, weight: Tensor | None) -> bool:
    """Return whether these kernels can compute the call with fewer flops."""
    if weight is None or not is_possible(a, weight):
        return False
    batch, sequences, residues, channels = a.shape
    outputs = weight.shape[0]
    fewer = sequences * outputs * (residues + channels) < residues * channels * (sequences + outputs)
    return fewer and batch * sequences * channels * outputs * residues <= MOST_PROJECTED_B


@triton.jit
def times_factor(values, factors_ptr, common_factor, row, j, n_residues):
    """Return [BLOCK_J, OUTPUTS] times the factor of residue `row` with each j, or the common factor of all pairs.

    A factor of zero gives zero, even of NaN.
    """
    if factors_ptr is not None:
        factor = tl.load(factors_ptr + row * n_residues + j, mask=j < n_residues, other=0.0)[:, None]
        values = tl.where(factor == 0.0, 0.0, values * factor)
    else:
        values *= common_factor
    return values


@triton.jit
def outer_product_epilogue_kernel(
    source_ptr, factors_ptr, bias_ptr, z_ptr, common_factor, n_residues, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Write […, outputs, j] as […, j, outputs], plus the bias, times the factor of each pair."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    outputs = tl.program_id(2) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_j, is_output = j < n_residues, outputs < n_outputs
    start = row * n_residues * n_outputs
    pointers = source_ptr + start + outputs[:, None] * n_residues + j[None, :]
    sums = tl.load(pointers, mask=is_output[:, None] & is_j[None, :], other=0.0)  # [BLOCK_OUTPUTS, BLOCK_J]
    sums = tl.trans(sums.to(COMPUTE))  # [BLOCK_J, BLOCK_OUTPUTS]
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(COMPUTE)[None, :]
    sums = times_factor(sums, factors_ptr, common_factor, row, j, n_residues)
    z_pointers = z_ptr + start + j[:, None] * n_outputs + outputs[None, :]
    tl.store(z_pointers, sums.to(z_ptr.dtype.element_ty), mask=is_j[:, None] & is_output[None, :])


@dataclass(frozen=True)
class EpilogueConfig(Config):
    """Each program takes BLOCK_J pairs of one residue, and BLOCK_OUTPUTS of their outputs."""

    BLOCK_J: int = 64
    BLOCK_OUTPUTS: int = 64


def epilogue_config(residues: int, outputs: int) -> EpilogueConfig:
    return EpilogueConfig(num_warps=8, BLOCK_J=min(bucket(residues), 64), BLOCK_OUTPUTS=min(bucket(outputs), 64))


@kernels("outer_product_mean_epilogue")
def with_epilogue(source: Tensor, factors: Tensor | None, bias: Tensor | None, common_factor: float) -> Tensor:
    """Return sums, [rows, outputs, residues], plus the bias, times factors, [rows, residues], as [rows, residues,
    outputs]. All are contiguous. Without factors, all pairs have the common factor."""
    rows, outputs, residues = source.shape
    return source.new_empty(rows, residues, outputs)


@with_epilogue.plan
def plan_epilogue(
    plan: Plan, source: Operand, factors: Operand | None, bias: Operand | None, common_factor: float
) -> Operand:
    rows, outputs, residues = source.shape
    z = plan.empty((rows, residues, outputs), source.dtype)
    config = plan.choose(epilogue_config(residues, outputs), bucket(residues), bucket(outputs), source.dtype)
    plan.launch(
        outer_product_epilogue_kernel,
        (rows, triton.cdiv(residues, config.BLOCK_J), triton.cdiv(outputs, config.BLOCK_OUTPUTS)), config,
        source_ptr=source, factors_ptr=factors, bias_ptr=bias, z_ptr=z, common_factor=common_factor,
        n_residues=residues, n_outputs=outputs, COMPUTE=compute_dtype(source.dtype),
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
        operands = Operands(a, b, mask, weight, eps)
        projected_b = operands.projected_b().view(batch, sequences * channels, outputs * residues)
        sums = product(operands.left, projected_b).view(batch * residues, outputs, residues)
        z = with_epilogue(sums, operands.factors, None if bias is None else bias.contiguous(), operands.common_factor)
    return z.view(batch, residues, residues, outputs)  # type: ignore[no-any-return]  # Kernels return what they say


class Operands:
    """The operands of the GEMMs of forward and backward, masked.

    - `left`: a as [batch, residues, sequences · channels];
    - `right`: b as [batch · sequences, residues, channels];
    - `weight`: as [channels of a · outputs, channels of b], one for all of the batch and its sequences;
    - `factors`: 1 / (eps + count) of each pair, [batch · residues, residues], or None where all have `common_factor`.
    """

    def __init__(self, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, eps: float) -> None:
        batch, sequences, residues, channels = a.shape
        if mask is not None:
            a, b = (one.masked_fill(~mask[..., None], 0.0) for one in (a, b))
        self.left = a.transpose(1, 2).reshape(batch, residues, sequences * channels)
        self.right = b.flatten(0, 1)
        by_channel = weight.reshape(-1, channels, channels).transpose(0, 1).reshape(-1, channels)
        self.weight = by_channel.expand(batch * sequences, -1, -1)
        self.factors = None if mask is None else inverse_counts(a, mask, eps).view(batch * residues, residues)
        self.common_factor = unmasked_inverse_count(sequences, eps)

    def projected_b(self) -> Tensor:
        """Return W · b, [batch · sequences, channels of a · outputs, residues]."""
        return product(self.weight, self.right.transpose(1, 2))
