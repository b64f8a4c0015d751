"""Gradients of weights, biases and norms on Hopper, from the standard rows that the backward's kernels write.

A projection takes normed rows xn = xs · w + b: standard rows xs, a norm's weight w and bias b. With d the gradient of
the projection's result, W its weight, and sums over all pairs p, the moments are

    M = dᵀ · xs    and    s_o = Σ_p d_po

All gradients follow. dW = dᵀ · xn = M · w + s ⊗ b, column by column. The projection's bias has the gradient s.
xn has the gradient d · W, so the norm's weight has Σ_p xs_pc · (Σ_o d_po · W_oc) = Σ_o W_oc · M_oc, and its bias
Σ_o W_oc · s_o.

So d and xs are read once, no earlier kernel sums, and the remaining work is of the size of the weights. M and s are
computed by split-K: each program sums a split of the pairs, and the splits are added in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.problem import Problem


@triton.jit(do_not_specialize=["n_pairs", "n_outputs"])
def triangle_moments_kernel(
    d, xs, products_ptr, sums_ptr, n_pairs, n_outputs,
    WIDTH: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write one split of M, [splits, outputs, WIDTH], and of s, [splits, outputs]. d and xs are TMA descriptors of
    PAIRS pairs, zeros beyond the last pair."""
    block, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    products = tl.zeros([BLOCK_OUTPUTS, WIDTH], tl.float32)  # [BLOCK_OUTPUTS, WIDTH]
    # The tensor cores sum too. Their narrowest product has 16 columns, here all equal.
    sums = tl.zeros([BLOCK_OUTPUTS, 16], tl.float32)  # [BLOCK_OUTPUTS, 16]
    ones = tl.full([PAIRS, 16], 1.0, d.dtype)  # [PAIRS, 16]
    for step in range(split, tl.cdiv(n_pairs, PAIRS), splits):
        transposed = tl.trans(d.load([step * PAIRS, block * BLOCK_OUTPUTS]))  # [BLOCK_OUTPUTS, PAIRS]
        standard = xs.load([step * PAIRS, 0])  # [PAIRS, WIDTH]
        products = tl.dot(transposed, standard, products)
        sums = tl.dot(transposed, ones, sums)
    outputs = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)  # [BLOCK_OUTPUTS], as rows
    is_output = outputs < n_outputs
    rows = split.to(tl.int64) * n_outputs + outputs
    tl.store(products_ptr + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], products, is_output[:, None])
    tl.store(sums_ptr + rows, tl.max(sums, axis=1), is_output)


@triton.jit(do_not_specialize=["n_splits", "n_output_splits"])
def triangle_weights_kernel(
    products_ptr, sums_ptr, output_products_ptr, output_sums_ptr, projection_weight_ptr, gate_weight_ptr,
    output_gate_weight_ptr, output_weight_ptr, norm_weight_ptr, norm_bias_ptr, output_norm_weight_ptr,
    output_norm_bias_ptr, dweights_ptr, doutput_weight_ptr, dvectors_ptr, partials_ptr, n_splits, n_output_splits,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one row of a weight, the gradient of its bias, and its part of the norm's gradients.

    Rows count through projection, gate, output gate and output.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)  # [WIDTH], as every vector below
    is_output = row >= 5 * WIDTH
    own_row = tl.where(is_output, row - 5 * WIDTH, row)  # in M and s
    n_rows = tl.where(is_output, WIDTH, 5 * WIDTH)
    products_ptr = tl.where(is_output, output_products_ptr, products_ptr)
    sums_ptr = tl.where(is_output, output_sums_ptr, sums_ptr)
    n_splits = tl.where(is_output, n_output_splits, n_splits)
    products = tl.zeros([SPLITS, WIDTH], tl.float32)  # [SPLITS, WIDTH]
    sums = tl.zeros([SPLITS], tl.float32)  # [SPLITS]
    for start in range(0, n_splits, SPLITS):
        splits = start + tl.arange(0, SPLITS)  # [SPLITS], as places
        places = splits.to(tl.int64) * n_rows + own_row
        is_split = splits < n_splits
        products += tl.load(products_ptr + places[:, None] * WIDTH + columns[None, :], is_split[:, None], other=0.0)
        sums += tl.load(sums_ptr + places, is_split, other=0.0)
    product, total = tl.sum(products, axis=0), tl.sum(sums, axis=0)  # [WIDTH], one number

    norm_weight = tl.load(tl.where(is_output, output_norm_weight_ptr, norm_weight_ptr) + columns).to(tl.float32)
    norm_bias = tl.load(tl.where(is_output, output_norm_bias_ptr, norm_bias_ptr) + columns).to(tl.float32)
    dweight = product * norm_weight + total * norm_bias
    dweight_ptr = tl.where(is_output, doutput_weight_ptr, dweights_ptr) + own_row * WIDTH
    tl.store(dweight_ptr + columns, dweight.to(dweights_ptr.dtype.element_ty))

    # Biases have another order in the gradients of VECTORS: output, output gate, projection and gate follow two, three,
    # six and eight vectors.
    is_output_gate = (row >= 4 * WIDTH) & (row < 5 * WIDTH)
    place = tl.where(is_output, row - 3 * WIDTH, tl.where(is_output_gate, row - WIDTH, row + 6 * WIDTH))
    tl.store(dvectors_ptr + place, total.to(dvectors_ptr.dtype.element_ty))

    weight_ptr = tl.where(row < 2 * WIDTH, projection_weight_ptr, gate_weight_ptr)
    weight_ptr = tl.where(is_output_gate, output_gate_weight_ptr, tl.where(is_output, output_weight_ptr, weight_ptr))
    first_row = tl.where(row < 2 * WIDTH, 0, tl.where(row < 4 * WIDTH, 2 * WIDTH, tl.where(is_output, 5, 4) * WIDTH))
    weight = tl.load(weight_ptr + (row - first_row) * WIDTH + columns).to(tl.float32)
    tl.store(partials_ptr + row * 2 * WIDTH + columns, weight * product)
    tl.store(partials_ptr + row * 2 * WIDTH + WIDTH + columns, weight * total)


@triton.jit
def triangle_norms_kernel(partials_ptr, dvectors_ptr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the gradients of both norms' weight and bias: the sums of what the rows of all weights add to them."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)  # [COLUMNS]
    is_output = tl.program_id(1) == 0
    first, last = tl.where(is_output, 5 * WIDTH, 0), tl.where(is_output, 6 * WIDTH, 5 * WIDTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)  # [ROWS, COLUMNS]
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)  # [ROWS]
        is_there = (rows < last)[:, None] & (columns < 2 * WIDTH)[None, :]
        total += tl.load(partials_ptr + rows[:, None] * 2 * WIDTH + columns[None, :], is_there, other=0.0)
    place = tl.where(is_output, 0, 4 * WIDTH) + columns
    tl.store(dvectors_ptr + place, tl.sum(total, axis=0).to(dvectors_ptr.dtype.element_ty), columns < 2 * WIDTH)


@dataclass(frozen=True)
class MomentsConfig(Config):
    """Each program takes BLOCK_OUTPUTS outputs, and PAIRS pairs at a time."""

    BLOCK_OUTPUTS: int = 128
    PAIRS: int = 64


@dataclass(frozen=True)
class WeightsConfig(Config):
    """Each program takes one row, and SPLITS splits at a time."""

    SPLITS: int = 16


@dataclass(frozen=True)
class NormsConfig(Config):
    """Each program takes COLUMNS columns, and ROWS rows at a time."""

    ROWS: int = 128
    COLUMNS: int = 16


Moments = tuple[Operand, Operand]
"""M and s of some projections, by splits of the pairs."""


def plan_moments(plan: Plan, problem: Problem, d: Operand, xs: Operand) -> Moments:
    """Put on the plan the moments of d and xs, [batch, n, n, columns] each, and return them.

    There are enough splits to give each multiprocessor a program. The output projection has few outputs and gets half
    as many splits, because all splits are read once more.
    """
    pairs, outputs, width = problem.pairs, d.shape[3], xs.shape[3]
    config = plan.choose(MomentsConfig(num_warps=8, num_stages=4), "moments", bucket(pairs), outputs, d.dtype)
    blocks = int(triton.cdiv(outputs, config.BLOCK_OUTPUTS))
    most = plan.multiprocessors // max(blocks, 2)
    splits = max(min(most, int(triton.cdiv(pairs, config.PAIRS))), 1)
    products, sums = plan.empty((splits, outputs, width), torch.float32), plan.empty((splits, outputs), torch.float32)
    seen = {
        name: one.seen_as((pairs, one.shape[3]), (one.shape[3], 1)).descriptor((config.PAIRS, columns))
        for name, one, columns in (("d", d, config.BLOCK_OUTPUTS), ("xs", xs, width))
    }
    plan.launch(
        triangle_moments_kernel, (blocks, splits), config,
        **seen, products_ptr=products, sums_ptr=sums, n_pairs=pairs, n_outputs=outputs, WIDTH=width,
    )  # fmt: skip
    return products, sums


def plan_weight_gradients(
    plan: Plan, problem: Problem, moments: Moments, output_moments: Moments
) -> tuple[Operand, Operand, Operand]:
    """Put on the plan the gradients of all parameters, and return them as `split_gradients` takes them."""
    width, dtype = problem.channels, problem.z.dtype
    dweights, doutput_weight = plan.empty((5 * width, width), dtype), plan.empty((width, width), dtype)
    dvectors, partials = plan.empty((10 * width,), dtype), plan.empty((6 * width, 2 * width), torch.float32)
    (products, sums), (output_products, output_sums) = moments, output_moments
    named = problem.parameters._asdict()
    plan.launch(
        triangle_weights_kernel, (6 * width,), plan.choose(WeightsConfig(), "weights"),
        products_ptr=products, sums_ptr=sums, output_products_ptr=output_products, output_sums_ptr=output_sums,
        **{f"{name}_ptr": one for name, one in named.items() if f"{name}_ptr" in triangle_weights_kernel.arg_names},
        dweights_ptr=dweights, doutput_weight_ptr=doutput_weight, dvectors_ptr=dvectors, partials_ptr=partials,
        n_splits=products.shape[0], n_output_splits=output_products.shape[0], WIDTH=width,
    )  # fmt: skip
    config = plan.choose(NormsConfig(), "norms")
    plan.launch(
        triangle_norms_kernel, (triton.cdiv(2 * width, config.COLUMNS), 2), config,
        partials_ptr=partials, dvectors_ptr=dvectors, WIDTH=width,
    )  # fmt: skip
    return dweights, doutput_weight, dvectors
