"""Losses and their gradient in one kernel, where the gradient's factor is known beforehand.

A program reads its rows for their maximum and sum of exponentials, and then writes their gradient. The part of a row
that does not fit in registers is read a second time, the last block first, while the L2 cache still has it. So with L
bytes of logits the kernel moves 2 L. The forward and the backward together move 3 L.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.cross_entropy.backward import factors_of_rows, gradient_of_block
from tilesmith.ops.cross_entropy.forward import loss_dtype, one_block_config, tile_across_rows
from tilesmith.ops.cross_entropy.rows import (
    exponential,
    load_target_logits,
    load_targets,
    loss_of_rows,
    with_block,
    without_infinity,
)
from tilesmith.ops.device.activations import tanh
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan

TOGETHER = tl.constexpr(16)  # columns: a multiple of 16 is read and written in whole vectors


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def loss_and_gradient_kernel(
    dloss_ptr, logits_ptr, target_ptr, losses_ptr, dlogits_ptr, logits_strides, target_strides, dlogits_strides,
    n_rows, sizes, kept_start, ignore_index, label_smoothing,
    SMOOTH: tl.constexpr, SOFTCAP: tl.constexpr, EXACT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Write the loss and the gradient of ROWS rows, BLOCK_SIZE columns at a time.

    dlogits may be the logits' own memory. The last block starts at `kept_start` and stays in registers. WHOLE: there is
    no other block. GROUP elements of a block share a lane's maximum, as in the forward. REST: columns follow the
    blocks, too few for whole vectors. SOFTCAP: see `capped`.
    """
    LANES: tl.constexpr = BLOCK_SIZE // GROUP
    n_classes = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    in_blocks = n_classes // TOGETHER * TOGETHER if REST else n_classes
    rest_columns = in_blocks + tl.arange(0, TOGETHER)
    in_rest = (rest_columns < n_classes)[None, :]
    kept_columns = kept_start + tl.arange(0, BLOCK_SIZE)
    in_kept = (kept_columns < in_blocks)[None, :]
    dloss = tl.load(dloss_ptr).to(COMPUTE)
    target, counts, is_class = load_targets(
        target_ptr, rows, n_rows, sizes, target_strides, ignore_index, NESTED
    )  # fmt: skip
    target_logit, anchor = load_target_logits(
        logits_ptr, rows, target, counts & is_class, sizes, logits_strides, NESTED, COMPUTE
    )  # fmt: skip
    target_logit = capped(target_logit, counts & is_class, SOFTCAP, EXACT)
    anchor = capped(anchor, counts & is_class, SOFTCAP, EXACT)

    maximum = tl.full([ROWS, LANES], float("-inf"), COMPUTE)  # [ROWS, LANES]
    exponentials = tl.zeros([ROWS, LANES], COMPUTE)  # [ROWS, LANES]
    differences = tl.zeros([ROWS, LANES], COMPUTE)  # [ROWS, LANES]
    if not WHOLE:
        for start in tl.range(0, kept_start, BLOCK_SIZE, num_stages=1):
            columns = start + tl.arange(0, BLOCK_SIZE)
            x_pointers = logits_ptr + tile_offsets(rows, columns, sizes, logits_strides, NESTED)
            x = tl.load(x_pointers, mask=counts, other=float("-inf"), eviction_policy="evict_last").to(COMPUTE)
            x = capped(x, counts, SOFTCAP, EXACT)
            if SMOOTH:
                differences += sum_of_group(tl.where(counts, x - anchor, 0.0), GROUP)
            maximum, exponentials = with_block(x, maximum, exponentials, GROUP)
    if REST:
        rest_pointers = logits_ptr + tile_offsets(rows, rest_columns, sizes, logits_strides, NESTED)
        rest = tl.load(rest_pointers, mask=counts & in_rest, other=float("-inf")).to(COMPUTE)  # [ROWS, TOGETHER]
        rest = capped(rest, counts & in_rest, SOFTCAP, EXACT)
    kept_pointers = logits_ptr + tile_offsets(rows, kept_columns, sizes, logits_strides, NESTED)
    kept = tl.load(kept_pointers, mask=counts & in_kept, other=float("-inf"), eviction_policy="evict_first")
    if SOFTCAP > 0:
        kept = capped(kept.to(COMPUTE), counts & in_kept, SOFTCAP, EXACT)
    if SMOOTH:
        differences += sum_of_group(tl.where(counts & in_kept, kept.to(COMPUTE) - anchor, 0.0), GROUP)
    if WHOLE:
        maximum = tl.max(tl.reshape(kept.to(COMPUTE), [ROWS, GROUP, LANES]), axis=1)
    else:
        maximum, exponentials = with_block(kept.to(COMPUTE), maximum, exponentials, GROUP)
    row_maximum = tl.max(maximum, axis=1)[:, None]  # [ROWS, 1]
    if REST:
        row_maximum = tl.maximum(row_maximum, tl.max(rest, axis=1)[:, None])
    shift = without_infinity(row_maximum)
    if WHOLE:
        exponentials = sum_of_group(exponential(kept.to(COMPUTE) - shift), GROUP)
    else:
        exponentials *= exponential(maximum - shift)
    row_sum = tl.sum(exponentials, axis=1)[:, None]  # [ROWS, 1]
    difference = tl.sum(differences, axis=1)[:, None]  # [ROWS, 1]
    if REST:
        row_sum += tl.sum(exponential(rest - shift), axis=1)[:, None]
        difference += tl.sum(tl.where(counts & in_rest, rest - anchor, 0.0), axis=1)[:, None]
    loss = loss_of_rows(
        shift, row_sum, target_logit, anchor, difference, counts, n_classes, label_smoothing, SMOOTH
    )  # fmt: skip
    tl.store(losses_ptr + rows[:, None], loss, mask=in_rows)

    inverse_sum = tl.where(counts, 1 / row_sum, 0.0)
    scale, for_target, for_others = factors_of_rows(dloss, inverse_sum, counts, is_class, n_classes, label_smoothing)
    if REST:
        dx = gradient_of_block(rest, shift, scale, target - in_blocks, for_target, for_others)
        dx = gradient_before_cap(dx, rest, counts & in_rest, SOFTCAP)
        dx_pointers = dlogits_ptr + tile_offsets(rows, rest_columns, sizes, dlogits_strides, NESTED)
        tl.store(dx_pointers, dx.to(dlogits_ptr.dtype.element_ty), mask=in_rows & in_rest)
    dx = gradient_of_block(kept.to(COMPUTE), shift, scale, target - kept_start, for_target, for_others)
    dx = gradient_before_cap(dx, kept, counts & in_kept, SOFTCAP)
    dx_pointers = dlogits_ptr + tile_offsets(rows, kept_columns, sizes, dlogits_strides, NESTED)
    tl.store(dx_pointers, dx.to(dlogits_ptr.dtype.element_ty), mask=in_rows & in_kept, eviction_policy="evict_first")
    if not WHOLE:
        for passed in tl.range(0, kept_start, BLOCK_SIZE, num_stages=1):
            start = kept_start - BLOCK_SIZE - passed
            columns = start + tl.arange(0, BLOCK_SIZE)
            x_pointers = logits_ptr + tile_offsets(rows, columns, sizes, logits_strides, NESTED)
            x = tl.load(x_pointers, mask=counts, other=0.0, eviction_policy="evict_first").to(COMPUTE)
            x = capped(x, counts, SOFTCAP, EXACT)
            dx = gradient_of_block(x, shift, scale, target - start, for_target, for_others)
            dx = gradient_before_cap(dx, x, counts, SOFTCAP)
            dx_pointers = dlogits_ptr + tile_offsets(rows, columns, sizes, dlogits_strides, NESTED)
            tl.store(dx_pointers, dx.to(dlogits_ptr.dtype.element_ty), mask=in_rows, eviction_policy="evict_first")


@triton.jit
def capped(logits, exist, SOFTCAP: tl.constexpr, EXACT: tl.constexpr):
    """Return SOFTCAP · tanh(logits / SOFTCAP) if SOFTCAP is positive. Logits that do not exist stay as they are."""
    if SOFTCAP > 0:
        logits = tl.where(exist, SOFTCAP * tanh(logits * (1 / SOFTCAP), EXACT), logits)
    return logits


@triton.jit
def gradient_before_cap(dx, x, exist, SOFTCAP: tl.constexpr):
    """Return the gradient of the logits that the cap turned into x. dx is the gradient of x."""
    if SOFTCAP > 0:
        fraction = tl.where(exist, x * (1 / SOFTCAP), 0.0)
        dx *= 1 - fraction * fraction
    return dx


@triton.jit
def sum_of_group(x, GROUP: tl.constexpr):
    """Return each lane's sum of its GROUP elements, [ROWS, LANES]."""
    return tl.sum(tl.reshape(x, [x.shape[0], GROUP, x.shape[1] // GROUP]), axis=1)


@dataclass(frozen=True)
class RowsConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time. GROUP columns share a lane."""

    ROWS: int = 1
    BLOCK_SIZE: int = 4096
    GROUP: int = 1


def rows_config(walk: Rows, element_bytes: int) -> RowsConfig:
    """Return the default tile.

    Rows of one block of at most 4 KiB get two warps. Longer rows get two vectors a thread, so that a multiprocessor
    holds 32 warps. The longest rows get 16 warps each: more rows at once would leave the L2 cache before their second
    read.

    On an H200, in µs, forward and backward → this kernel: 1024×1000 fp32 10.4 → 3.46 (4.65 with eight warps for two
    rows), 4096×32000 bf16 193 → 160 (171 without eviction policies), 1024×50257 fp16 241 → 78 (104 with 16 warps),
    2048×128256 bf16 402 → 369 (359 with eight vectors, which spill with Triton 3.9). A persistent kernel, more blocks
    in flight, and more blocks in registers were never faster. linear_cross_entropy of 8192×2048×128256 bf16 takes
    21.25 ms with either number of vectors, 21.41 with two kernels.
    """
    across = walk.column_strides[0] != 1
    if not across and bucket(walk.columns) * element_bytes > 8192:
        is_long = walk.columns * element_bytes > 1 << 17 and element_bytes < 8  # float64 would spill with 16 warps
        warps = 16 if is_long else 8
        return RowsConfig(num_warps=warps, BLOCK_SIZE=2 * 32 * warps * 16 // element_bytes, GROUP=2)
    narrow = tile_across_rows(walk) if across else one_block_config(walk, element_bytes)
    warps, rows = narrow.num_warps, narrow.ROWS
    row_bytes = narrow.BLOCK_SIZE * element_bytes
    if not across and row_bytes <= 4096:
        warps, rows = min(warps, 2), min(rows, 4096 // row_bytes, 256)  # more addresses do not fit in registers
    return RowsConfig(num_warps=warps, ROWS=rows, BLOCK_SIZE=narrow.BLOCK_SIZE)


@kernels("cross_entropy_loss_and_gradient")
def loss_and_gradient(
    logits: Tensor, target: Tensor, dloss: Tensor, ignore_index: int, label_smoothing: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and dloss, one number, times the gradient of their sum.

    A positive softcap turns the logits into softcap · tanh(logits / softcap) first.
    """
    return logits.new_empty(target.shape, dtype=loss_dtype(logits)), torch.empty_like(logits)


@loss_and_gradient.plan
def plan_into_new_memory(
    plan: Plan, logits: Operand, target: Operand, dloss: Operand, ignore_index: int, label_smoothing: float,
    softcap: float,
) -> tuple[Operand, Operand]:  # fmt: skip
    losses, dlogits = plan.empty(target.shape, loss_dtype(logits)), plan.empty_like(logits)
    plan_loss_and_gradient(plan, losses, logits, target, dloss, dlogits, ignore_index, label_smoothing, softcap)
    return losses, dlogits


def plan_loss_and_gradient(
    plan: Plan, losses: Operand, logits: Operand, target: Operand, dloss: Operand, dlogits: Operand,
    ignore_index: int, label_smoothing: float, softcap: float,
) -> None:  # fmt: skip
    """Put on the plan the losses, contiguous, and dlogits, which may be the logits' own memory."""
    walk = as_rows(logits.shape, logits.strides, (*target.strides, 0), dlogits.strides)
    config = plan.choose(rows_config(walk, logits.element_bytes), walk.columns_bucket, logits.dtype)
    in_blocks = walk.columns if walk.columns < 512 else walk.columns // TOGETHER.value * TOGETHER.value
    blocks = max(triton.cdiv(in_blocks, config.BLOCK_SIZE), 1)
    plan.launch(
        loss_and_gradient_kernel, (triton.cdiv(walk.rows, config.ROWS),), config,
        dloss_ptr=dloss, logits_ptr=logits, target_ptr=target, losses_ptr=losses, dlogits_ptr=dlogits,
        **walk.arguments("logits", "target", "dlogits"),
        kept_start=(blocks - 1) * config.BLOCK_SIZE,
        ignore_index=ignore_index, label_smoothing=float(label_smoothing),
        SMOOTH=label_smoothing > 0, SOFTCAP=float(softcap), EXACT=logits.element_bytes > 2,
        COMPUTE=compute_dtype(logits.dtype), WHOLE=blocks == 1, REST=in_blocks < walk.columns,
    )  # fmt: skip
