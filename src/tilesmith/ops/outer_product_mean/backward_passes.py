"""The elementwise passes of the backward: one over dz, one over all outer products.

Both move their elements once and compute little: memory-bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_pairs", "pairs_per_split"])
def outer_product_scale_kernel(
    dz_ptr, factor_ptr, scaled_ptr, partials_ptr, dz_strides, n_pairs, pairs_per_split, n_second, n_outputs,
    COMPUTE: tl.constexpr, BLOCK_PAIRS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Write dz times the pair's factor, and its sum, for one split of the pairs and a block of outputs."""
    split = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_output = outputs < n_outputs
    total = tl.zeros([BLOCK_PAIRS, BLOCK_OUTPUTS], COMPUTE)  # [BLOCK_PAIRS, BLOCK_OUTPUTS]
    last = tl.minimum((split + 1) * pairs_per_split, n_pairs)
    for start in range(split * pairs_per_split, last, BLOCK_PAIRS):
        pairs = start + tl.arange(0, BLOCK_PAIRS)
        mask = (pairs < last)[:, None] & is_output[None, :]
        factor = tl.load(factor_ptr + pairs, mask=pairs < last, other=0.0)  # [BLOCK_PAIRS]
        places = pairs // n_second * dz_strides[0] + pairs % n_second * dz_strides[1]
        dz = tl.load(dz_ptr + places[:, None] + (outputs * dz_strides[2])[None, :], mask=mask, other=0.0)
        scaled = dz.to(COMPUTE) * factor[:, None]  # [BLOCK_PAIRS, BLOCK_OUTPUTS]
        scaled = tl.where(factor[:, None] == 0.0, 0.0, scaled)  # a pair that no sequence has, even of NaN
        scaled_pointers = scaled_ptr + pairs[:, None] * n_outputs + outputs[None, :]
        tl.store(scaled_pointers, scaled.to(scaled_ptr.dtype.element_ty), mask=mask)
        total += scaled
    tl.store(partials_ptr + split * n_outputs + outputs, tl.sum(total, axis=0), mask=is_output)


@triton.jit
def outer_product_transpose_kernel(
    source_ptr, result_ptr, n_first, n_second,
    INNER: tl.constexpr, BLOCK_INNER: tl.constexpr, BLOCK_FIRST: tl.constexpr, BLOCK_SECOND: tl.constexpr,
):  # fmt: skip
    """Write […, first, second, INNER] as […, second, first, INNER], in tiles that are contiguous on both sides."""
    tiles_across = tl.cdiv(n_second, BLOCK_SECOND)
    tiles = tl.cdiv(n_first, BLOCK_FIRST) * tiles_across
    matrix, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    places = tl.arange(0, BLOCK_FIRST * BLOCK_SECOND)
    first = tile // tiles_across * BLOCK_FIRST + places // BLOCK_SECOND
    second = tile % tiles_across * BLOCK_SECOND + places % BLOCK_SECOND
    inner = tl.arange(0, BLOCK_INNER)
    mask = ((first < n_first) & (second < n_second))[:, None] & (inner < INNER)[None, :]
    start = matrix * n_first * n_second
    from_places = (start + first.to(tl.int64) * n_second + second) * INNER
    to_places = (start + second.to(tl.int64) * n_first + first) * INNER
    values = tl.load(source_ptr + from_places[:, None] + inner[None, :], mask=mask)  # [FIRST · SECOND, BLOCK_INNER]
    tl.store(result_ptr + to_places[:, None] + inner[None, :], values, mask=mask)


@dataclass(frozen=True)
class WeightedConfig(Config):
    """Each program takes a split of the pairs, BLOCK_PAIRS × BLOCK_OUTPUTS at a time."""

    BLOCK_PAIRS: int = 16
    BLOCK_OUTPUTS: int = 128
    programs_per_multiprocessor: int = 8


@dataclass(frozen=True)
class TransposeConfig(Config):
    """Each program takes a tile of BLOCK_FIRST × BLOCK_SECOND rows of INNER elements."""

    BLOCK_FIRST: int = 16
    BLOCK_SECOND: int = 16


def transpose_config(first: int, second: int, inner: int) -> TransposeConfig:
    """Return a square tile of 8192 elements: 32 for each thread of eight warps."""
    runs = max(8192 // bucket(inner), 1)
    side = 1 << (runs.bit_length() // 2)
    block_first = min(side, bucket(first))
    return TransposeConfig(num_warps=8, BLOCK_FIRST=block_first, BLOCK_SECOND=min(runs // block_first, bucket(second)))


@kernels("outer_product_mean_scaled")
def scaled_gradient(dz: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return dz, [first, second, outputs], times a contiguous factor, [first, second], and the sum over all pairs."""
    return dz.new_empty(dz.shape), factor.new_empty(dz.shape[-1])


@scaled_gradient.plan
def plan_scaled_gradient(plan: Plan, dz: Operand, factor: Operand) -> tuple[Operand, Operand]:
    first, second, outputs = dz.shape
    result, total = plan.empty(dz.shape, dz.dtype), plan.empty((outputs,), factor.dtype)
    block_outputs = min(bucket(outputs), 128)
    default = WeightedConfig(num_warps=4, BLOCK_PAIRS=2048 // block_outputs, BLOCK_OUTPUTS=block_outputs)
    config = plan.choose(default, bucket(outputs), dz.dtype)
    blocks = triton.cdiv(outputs, config.BLOCK_OUTPUTS)
    steps = triton.cdiv(first * second, config.BLOCK_PAIRS)
    splits = max(min(plan.multiprocessors * config.programs_per_multiprocessor // max(blocks, 1), steps), 1)
    pairs_per_split = triton.cdiv(steps, splits) * config.BLOCK_PAIRS
    splits = triton.cdiv(first * second, max(pairs_per_split, 1))
    partials = plan.empty((splits, outputs), factor.dtype)
    compute = compute_dtype(factor.dtype)
    plan.launch(
        outer_product_scale_kernel, (splits, blocks), config,
        dz_ptr=dz, factor_ptr=factor, scaled_ptr=result, partials_ptr=partials, dz_strides=dz.strides,
        n_pairs=first * second, pairs_per_split=pairs_per_split, n_second=second, n_outputs=outputs, COMPUTE=compute,
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, total, compute)
    return result, total


@kernels("outer_product_mean_transposed")
def transposed(source: Tensor) -> Tensor:
    """Return contiguous [outer, first, second, inner] as [outer, second, first, inner]."""
    outer, first, second, inner = source.shape
    return source.new_empty(outer, second, first, inner)


@transposed.plan
def plan_transposed(plan: Plan, source: Operand) -> Operand:
    outer, first, second, inner = source.shape
    result = plan.empty((outer, second, first, inner), source.dtype)
    default = transpose_config(first, second, inner)
    config = plan.choose(default, bucket(first), bucket(second), bucket(inner), source.dtype)
    tiles = triton.cdiv(first, config.BLOCK_FIRST) * triton.cdiv(second, config.BLOCK_SECOND)
    plan.launch(
        outer_product_transpose_kernel, (outer * tiles,), config,
        source_ptr=source, result_ptr=result, n_first=first, n_second=second, INNER=inner, BLOCK_INNER=bucket(inner),
    )  # fmt: skip
    return result
