"""The forward: the loss of each row, their sum or mean, and what the backward needs of each row."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.cross_entropy.rows import (
    exponential,
    load_target_logits,
    load_targets,
    loss_of_rows,
    with_block,
    without_infinity,
)
from tilesmith.ops.cross_entropy.wide_rows import (
    ForwardConfig,
    cross_entropy_row_forward_kernel,
    of_rows,
    parts_of_rows,
    plan_split_rows,
    takes_rows,
    warps_of_rows,
)
from tilesmith.ops.device.elementwise import TileConfig, compute_dtype
from tilesmith.ops.device.overlapped import can_overlap, let_next_launch_start, wait_for_launch_before
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def cross_entropy_forward_kernel(
    logits_ptr, target_ptr, losses_ptr, kept_ptr, logits_strides, target_strides, n_rows, sizes,
    ignore_index, label_smoothing,
    COUNTED: tl.constexpr, SMOOTH: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, PIPELINE: tl.constexpr,
    NEXT_OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Write the loss of ROWS rows, and what the backward needs. Rows that do not count are not read.

    A row is LANES running maxima and sums. GROUP elements of a block share a lane's maximum, so that an element costs
    little more than one exponential: two would take longer than loading its two bytes.
    """
    LANES: tl.constexpr = BLOCK_SIZE // GROUP
    let_next_launch_start(NEXT_OVERLAPS)
    n_classes = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target, counts, is_class = load_targets(
        target_ptr, rows, n_rows, sizes, target_strides, ignore_index, NESTED
    )  # fmt: skip
    target_logit, anchor = load_target_logits(
        logits_ptr, rows, target, counts & is_class, sizes, logits_strides, NESTED, COMPUTE
    )  # fmt: skip

    maximum = tl.full([ROWS, LANES], float("-inf"), COMPUTE)  # [ROWS, LANES]
    exponentials = tl.zeros([ROWS, LANES], COMPUTE)  # [ROWS, LANES]
    differences = tl.zeros([ROWS, LANES], COMPUTE)  # [ROWS, LANES]
    for start in tl.range(0, n_classes, BLOCK_SIZE, num_stages=PIPELINE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        mask = counts & (columns < n_classes)[None, :]
        x_pointers = logits_ptr + tile_offsets(rows, columns, sizes, logits_strides, NESTED)
        x = tl.load(x_pointers, mask=mask, other=float("-inf")).to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        if SMOOTH:
            difference = tl.where(mask, x - anchor, 0.0)
            differences += tl.sum(tl.reshape(difference, [ROWS, GROUP, LANES]), axis=1)
        maximum, exponentials = with_block(x, maximum, exponentials, GROUP)
    shift = without_infinity(tl.max(maximum, axis=1)[:, None])  # [ROWS, 1]
    row_sum = tl.sum(exponentials * exponential(maximum - shift), axis=1)[:, None]  # [ROWS, 1]

    difference = tl.sum(differences, axis=1)[:, None]
    loss = loss_of_rows(
        shift, row_sum, target_logit, anchor, difference, counts, n_classes, label_smoothing, SMOOTH
    )  # fmt: skip

    row_column = rows[:, None]
    in_rows = row_column < n_rows
    if COUNTED:
        tl.store(losses_ptr + 2 * row_column, loss, mask=in_rows)
        tl.store(losses_ptr + 2 * row_column + 1, counts.to(COMPUTE), mask=in_rows)
    else:
        tl.store(losses_ptr + row_column, loss, mask=in_rows)
    tl.store(kept_ptr + 2 * row_column, shift, mask=in_rows)
    tl.store(kept_ptr + 2 * row_column + 1, 1 / row_sum, mask=in_rows)


@triton.jit(do_not_specialize=["n_pairs", "scale_place"])
def sum_losses_kernel(
    pairs_ptr, sums_ptr, loss_ptr, kept_ptr, n_pairs, scale_place,
    LAST: tl.constexpr, MEAN: tl.constexpr, OVERLAPS: tl.constexpr, PAIRS: tl.constexpr,
    PAIRS_OF_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Add up PAIRS_OF_PROGRAM pairs of a loss and its number of rows, PAIRS at a time. With LAST, one program writes
    the final loss."""
    wait_for_launch_before(OVERLAPS)
    program = tl.program_id(0).to(tl.int64)
    losses = tl.zeros([PAIRS], pairs_ptr.dtype.element_ty)  # [PAIRS]
    counts = tl.zeros([PAIRS], pairs_ptr.dtype.element_ty)  # [PAIRS]
    first = program * PAIRS_OF_PROGRAM
    for start in range(first, tl.minimum(first + PAIRS_OF_PROGRAM, n_pairs), PAIRS):
        pairs = start + tl.arange(0, PAIRS)  # [PAIRS]
        losses += tl.load(pairs_ptr + 2 * pairs, mask=pairs < n_pairs, other=0.0)
        counts += tl.load(pairs_ptr + 2 * pairs + 1, mask=pairs < n_pairs, other=0.0)
    loss, count = tl.sum(losses, axis=0), tl.sum(counts, axis=0)
    if LAST:
        divisor = count if MEAN else tl.full([], 1.0, count.dtype)
        tl.store(loss_ptr, loss / divisor)
        tl.store(kept_ptr + scale_place, 1.0 / divisor)
    else:
        tl.store(sums_ptr + 2 * program, loss)
        tl.store(sums_ptr + 2 * program + 1, count)


def tile_across_rows(walk: Rows) -> TileConfig:
    """Return a tile for rows that are adjacent in memory, such as pixels with a plane for each class."""
    rows = min(bucket(walk.rows), 64)
    return TileConfig(num_warps=4, ROWS=rows, BLOCK_SIZE=min(bucket(walk.columns), 2048 // rows))


def forward_config(walk: Rows, element_bytes: int, multiprocessors: int) -> ForwardConfig:
    """Return the default tile of the forward: few warps for each row, with eight vector loads a thread in flight.

    On an H200 in bf16 with four warps and eight, four or two vectors: 6342×21128 73, 76 and 80 µs; 8192×32000 126, 128
    and 137. With one warp, eight vectors leave many lanes idle at some widths: 24500×5101 72.3, 69.8 with four.
    """
    if walk.column_strides[0] != 1:  # adjacent rows are adjacent in memory: read them together
        tile = tile_across_rows(walk)
        return ForwardConfig(num_warps=tile.num_warps, ROWS=tile.ROWS, BLOCK_SIZE=tile.BLOCK_SIZE)
    per_thread = 16 // element_bytes  # one vector load
    block_size, row_bytes = bucket(walk.columns), walk.columns * element_bytes
    if block_size <= 64 * per_thread:  # the row is one block: one element a lane
        return one_block_config(walk, element_bytes)
    parts = parts_of_rows(walk.rows, row_bytes, multiprocessors)
    warps = 4 if parts > 1 else warps_of_rows(walk.rows, row_bytes, multiprocessors)
    per_warp = 32 * warps * per_thread
    vectors = min(block_size // per_warp, 8)
    if warps == 1 and vectors == 8 and triton.cdiv(walk.columns, 8 * per_warp) * 8 * per_warp > 1.15 * walk.columns:
        vectors = 4
    return ForwardConfig(num_warps=warps, BLOCK_SIZE=vectors * per_warp, GROUP=vectors, parts=parts)


def one_block_config(walk: Rows, element_bytes: int) -> ForwardConfig:
    """Return several rows in one tile, one vector load a thread."""
    block_size = bucket(walk.columns)
    rows = min(max(2048 // block_size, 1), bucket(walk.rows))
    warps = min(max(rows * block_size * element_bytes // (32 * 16), 1), 8)
    return ForwardConfig(num_warps=warps, ROWS=rows, BLOCK_SIZE=block_size)


@dataclass(frozen=True)
class SumConfig(Config):
    """Each program adds up PAIRS_OF_PROGRAM pairs, PAIRS at a time."""

    PAIRS: int = 1024
    PAIRS_OF_PROGRAM: int = 65536


def sum_config(n_pairs: int) -> SumConfig:
    """Return one program for all pairs up to 65,536: a further launch takes as long as the sum."""
    return SumConfig(num_warps=4, PAIRS=1024) if n_pairs <= 1024 else SumConfig(num_warps=32, PAIRS=4096)


@kernels("cross_entropy_forward")
def forward(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Tensor, Tensor]:
    """Return the loss, and what the backward needs: for each row its maximum and 1 / Σ exp(x − maximum), then 1 / the
    divisor of the loss, if it is reduced."""
    dtype = loss_dtype(logits)
    shape = target.shape if reduction == "none" else ()
    kept = 2 * target.numel() + int(reduction != "none")  # torch.compile cannot add a bool to a symbolic size
    return logits.new_empty(shape, dtype=dtype), logits.new_empty(kept, dtype=dtype)


def loss_dtype(logits: Tensor | Operand) -> torch.dtype:
    """Return the dtype of the loss and of its computation."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


@forward.plan
def plan_forward(
    plan: Plan, logits: Operand, target: Operand, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Operand, Operand]:
    dtype = loss_dtype(logits)
    walk = as_rows(logits.shape, logits.strides, (*target.strides, 0))
    reduced = reduction != "none"
    loss = plan.empty(() if reduced else target.shape, dtype)
    kept = plan.empty((2 * walk.rows + reduced,), dtype)
    losses = plan.empty((walk.rows, 2), dtype) if reduced else loss
    config = plan.choose(
        forward_config(walk, logits.element_bytes, plan.multiprocessors), walk.columns_bucket, logits.dtype
    )
    arguments: dict[str, object] = {
        "logits_ptr": logits, "target_ptr": target, "losses_ptr": losses, "kept_ptr": kept,
        "ignore_index": ignore_index, "label_smoothing": float(label_smoothing),
        "COUNTED": reduced, "SMOOTH": label_smoothing > 0, "COMPUTE": compute_dtype(logits.dtype),
    }  # fmt: skip
    overlaps = reduced and can_overlap(plan)
    if takes_rows(walk, config.ROWS, logits):
        if config.parts > 1:
            plan_split_rows(plan, config, walk, reduction, logits, loss, arguments)
            return loss, kept
        plan.launch(
            cross_entropy_row_forward_kernel, (walk.rows,), config, **arguments, **of_rows(walk, logits, config),
            NEXT_OVERLAPS=overlaps,
        )  # fmt: skip
    else:
        grid = (triton.cdiv(walk.rows, config.ROWS),)
        plan.launch(
            cross_entropy_forward_kernel, grid, config, **arguments, **walk.arguments("logits", "target"),
            NEXT_OVERLAPS=overlaps,
        )  # fmt: skip
    if reduced:
        _plan_sum(plan, losses, loss, kept, overlaps, mean=reduction == "mean")
    return loss, kept


def _plan_sum(plan: Plan, pairs: Operand, loss: Operand, kept: Operand, overlaps: bool, mean: bool) -> None:
    """Put on the plan the sum of all losses, divided by their number for a mean. The sum of no rows is zero."""
    n_pairs = pairs.shape[0]
    config = sum_config(n_pairs).for_warps_of(plan.architecture.warp_size)
    programs = max(triton.cdiv(n_pairs, config.PAIRS_OF_PROGRAM), 1)
    last = programs == 1
    sums = None if last else plan.empty((programs, 2), pairs.dtype)
    plan.launch(
        sum_losses_kernel, (programs,), config,
        pairs_ptr=pairs, sums_ptr=sums, loss_ptr=loss if last else None, kept_ptr=kept if last else None,
        n_pairs=n_pairs, scale_place=kept.shape[0] - 1, LAST=last, MEAN=mean, OVERLAPS=overlaps,
    )  # fmt: skip
    if sums is not None:
        _plan_sum(plan, sums, loss, kept, False, mean)
