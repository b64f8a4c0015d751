"""The forward of wide rows in whole vectors, whatever their width: one program a row, or several where rows are few.

The programs of a row leave their maxima and sums in memory. One further kernel joins them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.cross_entropy.rows import exponential, loss_of_rows, with_block, without_infinity
from tilesmith.ops.device.aligned_rows import cut_rows, edges_of, tile_pointers
from tilesmith.ops.device.overlapped import can_overlap, let_next_launch_start, wait_for_launch_before
from tilesmith.ops.device.row_chunks import VECTOR_BYTES, can_be_cut, has_edges
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Operand, Plan

LEAST_BYTES = 16 << 10  # of a part
LEAST_TO_FIT = 24 << 10  # bytes of a row: shorter rows end soon enough for others to follow
MOST_TO_FIT = 16  # rows for each multiprocessor that all run at once


@triton.jit(do_not_specialize=["n_parts", "part_vectors", "ignore_index"])
def cross_entropy_row_forward_kernel(
    logits_ptr, target_ptr, losses_ptr, kept_ptr, logits_stride, target_stride, n_classes, n_parts, part_vectors,
    ignore_index, label_smoothing,
    COUNTED: tl.constexpr, SMOOTH: tl.constexpr, SPLIT: tl.constexpr, EDGES: tl.constexpr, VECTOR: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
    NEXT_OVERLAPS: tl.constexpr,
):  # fmt: skip
    """As `cross_entropy_forward_kernel`, for one wide row from any address on. EDGES: see `cut_rows`.

    With SPLIT it takes one of `n_parts` parts of the row, and writes to `losses_ptr` what the join needs.
    """
    LANES: tl.constexpr = BLOCK_SIZE // GROUP
    let_next_launch_start(NEXT_OVERLAPS)
    row, part = tl.program_id(0).to(tl.int64), 0
    if SPLIT:
        row, part = row // n_parts, tl.program_id(0) % n_parts
    row_ptr = logits_ptr + row * logits_stride
    target = tl.load(target_ptr + row * target_stride)
    counts = target != ignore_index
    n_read = tl.where(counts, n_classes, 0)
    lead, length = cut_rows(row_ptr, n_read, VECTOR, EDGES)
    first, end = 0, length
    if SPLIT:  # counted in vectors, so that the compiler knows that both are multiples
        first = part * part_vectors * VECTOR
        end = tl.minimum((part + 1) * part_vectors, length // VECTOR) * VECTOR
    columns = first + tl.arange(0, BLOCK_SIZE)
    ahead = tl.load(tile_pointers(row_ptr + lead, columns, 1, True), mask=columns < end, other=float("-inf"))
    if EDGES:  # read before the middle, so that nothing is waited for after it
        edge_columns, exists = edges_of(lead, length, n_read, VECTOR)
        exists &= part == 0
        edges = tl.load(row_ptr + edge_columns, mask=exists, other=float("-inf")).to(COMPUTE)  # [2 · VECTOR]
    is_read = counts & (target >= 0) & (target < n_classes)
    target_logit = tl.load(row_ptr + target, mask=is_read, other=float("nan")).to(COMPUTE)
    anchor = tl.where(tl.abs(target_logit) < float("inf"), target_logit, 0.0)

    maximum = tl.full([1, LANES], float("-inf"), COMPUTE)  # [1, LANES]
    exponentials = tl.zeros([1, LANES], COMPUTE)  # [1, LANES]
    differences = tl.zeros([1, LANES], COMPUTE)  # [1, LANES]
    for start in tl.range(first, end, BLOCK_SIZE, num_stages=1):
        columns = start + tl.arange(0, BLOCK_SIZE)
        x = ahead.to(COMPUTE)
        next_columns = columns + BLOCK_SIZE
        next_pointers = tile_pointers(row_ptr + lead, next_columns, 1, True)
        ahead = tl.load(next_pointers, mask=next_columns < end, other=float("-inf"))
        if SMOOTH:
            difference = tl.where(columns < end, x - anchor, 0.0)
            differences += tl.sum(tl.reshape(difference, [1, GROUP, LANES]), axis=1)
        maximum, exponentials = with_block(x, maximum, exponentials, GROUP)
    largest = tl.max(tl.reshape(maximum, [LANES]), axis=0)
    if EDGES:
        largest = tl.maximum(largest, tl.max(edges, axis=0))
    shift = without_infinity(largest)
    row_sum = tl.sum(tl.reshape(exponentials * exponential(maximum - shift), [LANES]), axis=0)
    difference = tl.sum(tl.reshape(differences, [LANES]), axis=0)
    if EDGES:
        row_sum += tl.sum(exponential(edges - shift), axis=0)
        difference += tl.sum(tl.where(exists, edges - anchor, 0.0), axis=0)
    if SPLIT:
        place = losses_ptr + row * 3 * n_parts + part
        tl.store(place, largest)
        tl.store(place + n_parts, row_sum)
        if SMOOTH:
            tl.store(place + 2 * n_parts, difference)
    else:
        loss = loss_of_rows(
            shift, row_sum, target_logit, anchor, difference, counts, n_classes, label_smoothing, SMOOTH
        )  # fmt: skip
        if COUNTED:
            tl.store(losses_ptr + 2 * row, loss)
            tl.store(losses_ptr + 2 * row + 1, counts.to(COMPUTE))
        else:
            tl.store(losses_ptr + row, loss)
        tl.store(kept_ptr + 2 * row, shift)
        tl.store(kept_ptr + 2 * row + 1, 1 / row_sum)


@triton.jit(do_not_specialize=["n_rows", "n_parts", "ignore_index"])
def cross_entropy_join_kernel(
    parts_ptr, logits_ptr, target_ptr, losses_ptr, kept_ptr, logits_stride, target_stride, n_rows, n_classes, n_parts,
    ignore_index, label_smoothing,
    REDUCED: tl.constexpr, MEAN: tl.constexpr, SMOOTH: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Write the loss of ROWS rows, or of all rows their sum or mean, and what the backward needs, from rows' parts."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    in_rows = rows < n_rows
    target = tl.load(target_ptr + rows * target_stride, mask=in_rows, other=ignore_index)  # [ROWS, 1]
    counts = target != ignore_index
    is_read = counts & (target >= 0) & (target < n_classes)
    logits = logits_ptr + rows * logits_stride + target
    target_logit = tl.load(logits, mask=is_read, other=float("nan")).to(tl.float32)  # [ROWS, 1]
    anchor = tl.where(tl.abs(target_logit) < float("inf"), target_logit, 0.0)
    wait_for_launch_before(OVERLAPS)
    parts = tl.arange(0, PARTS)[None, :]  # [1, PARTS]
    places = parts_ptr + rows * 3 * n_parts + parts
    exists = in_rows & (parts < n_parts)
    maximum = tl.load(places, mask=exists, other=float("-inf"))  # [ROWS, PARTS]
    sums = tl.load(places + n_parts, mask=exists, other=0.0)  # [ROWS, PARTS]
    difference = 0.0
    if SMOOTH:
        differences = tl.load(places + 2 * n_parts, mask=exists, other=0.0)  # [ROWS, PARTS]
        difference = tl.sum(differences, axis=1)[:, None]
    shift = without_infinity(tl.max(maximum, axis=1)[:, None])  # [ROWS, 1]
    row_sum = tl.sum(sums * exponential(maximum - shift), axis=1)[:, None]  # [ROWS, 1]
    loss = loss_of_rows(
        shift, row_sum, target_logit, anchor, difference, counts, n_classes, label_smoothing, SMOOTH
    )  # fmt: skip
    tl.store(kept_ptr + 2 * rows, shift, mask=in_rows)
    tl.store(kept_ptr + 2 * rows + 1, 1 / row_sum, mask=in_rows)
    if REDUCED:
        total = tl.sum(tl.sum(loss, axis=1), axis=0)
        count = tl.sum(tl.sum(counts.to(tl.float32), axis=1), axis=0)
        divisor = count if MEAN else tl.full([], 1.0, tl.float32)
        tl.store(losses_ptr, total / divisor)
        tl.store(kept_ptr + 2 * n_rows, 1.0 / divisor)
    else:
        tl.store(losses_ptr + rows, loss, mask=in_rows)


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time, with PIPELINE tiles in flight from memory.

    Or it takes one of `parts` of a row.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 4096
    GROUP: int = 1
    PIPELINE: int = 1
    parts: int = 1


def takes_rows(walk: Rows, rows_of_tile: int, *operands: Operand) -> bool:
    """Whether the kernels of one row take these tensors, which are the first of the walk."""
    is_row = rows_of_tile == 1 and walk.columns > 0 and operands[0].element_bytes <= 4
    return is_row and can_be_cut(walk, operands, len(operands))


def parts_of_rows(rows: int, row_bytes: int, multiprocessors: int) -> int:
    """Return into how many parts each row is split: one, or where rows are few, so many that programs of four warps
    occupy the GPU and all run at once.

    On an H200 in bf16, with as many parts and with more: 193×200064 26.3 µs and 28.4, 150×262147 26.4 and 30.6.
    """
    if rows > 2 * multiprocessors:
        return 1
    return max(min(programs_at_once(4) * multiprocessors // max(rows, 1), row_bytes // LEAST_BYTES, 16), 1)


def programs_at_once(warps: int) -> int:
    """Return how many programs of this kernel one multiprocessor runs at once, by its 72 registers a thread."""
    return 28 // warps


def warps_of_rows(rows: int, row_bytes: int, multiprocessors: int) -> int:
    """Return the warps of a program that takes a whole row: the most with which all rows run at once. Where rows are
    many, few warps for short rows.

    On an H200 in bf16: 940×49151 33 µs with four warps, 28.7 with two; 508×200064 65 with eight, 56 with four;
    2036×30522 39 with four, 35.4 with one; 2100×16064 25.1 with two, 21.6 with one. One warp is too few for more rows:
    3184×50280 85 with four, 97 with one.
    Many rows with 1, 2 and 4 warps: 17514×7439 70, 71 and 78; 22499×9056 104, 115 and 124; 8000×12000 54, 52 and 54
    (`benchmarks/tuning/few_long_rows-h200.json`).
    """
    each = triton.cdiv(rows, multiprocessors)
    if row_bytes >= LEAST_TO_FIT and each <= MOST_TO_FIT:
        return max(warps for warps in (1, 2, 4, 8) if programs_at_once(warps) >= each)
    return 1 if row_bytes <= 18 << 10 else 2 if row_bytes <= 32 << 10 else 4


def of_rows(walk: Rows, logits: Operand, config: ForwardConfig) -> dict[str, object]:
    """Return the arguments of the kernel that say where rows are and how they are split."""
    vector = VECTOR_BYTES // logits.element_bytes
    return {
        "logits_stride": walk.strides[0][0], "target_stride": walk.strides[1][0], "n_classes": walk.columns,
        "n_parts": config.parts, "part_vectors": triton.cdiv(triton.cdiv(walk.columns, vector), config.parts),
        "SPLIT": config.parts > 1, "EDGES": has_edges(walk, 16, 1), "VECTOR": vector,
    }  # fmt: skip


@dataclass(frozen=True)
class JoinConfig(Config):
    ROWS: int = 64


def join_config(rows: int, parts: int, reduced: bool) -> JoinConfig:
    """Return one program for all rows where they are reduced. Rows that are split are few."""
    if not reduced:
        return JoinConfig(num_warps=4, ROWS=max(256 // bucket(parts), 1))
    return JoinConfig(num_warps=min(max(bucket(rows) * bucket(parts) // 256, 1), 16), ROWS=bucket(rows))


def plan_split_rows(
    plan: Plan, config: ForwardConfig, walk: Rows, reduction: str, logits: Operand, loss: Operand,
    arguments: dict[str, object],
) -> None:  # fmt: skip
    """Put on the plan the launch of all parts, and the one that joins them."""
    reduced = reduction != "none"
    parts = plan.empty((walk.rows, 3, config.parts), torch.float32)
    given = of_rows(walk, logits, config)
    overlaps = can_overlap(plan)
    plan.launch(
        cross_entropy_row_forward_kernel, (walk.rows * config.parts,), config, **{**arguments, "losses_ptr": parts},
        **given, NEXT_OVERLAPS=overlaps,
    )  # fmt: skip
    join = join_config(walk.rows, config.parts, reduced).for_warps_of(plan.architecture.warp_size)
    given |= {**arguments, "losses_ptr": loss, "parts_ptr": parts, "n_rows": walk.rows}
    given |= {"REDUCED": reduced, "MEAN": reduction == "mean", "PARTS": bucket(config.parts), "OVERLAPS": overlaps}
    named = {name: given[name] for name in cross_entropy_join_kernel.arg_names if name in given}
    plan.launch(cross_entropy_join_kernel, (triton.cdiv(walk.rows, join.ROWS),), join, **named)
