"""Sums over rows in two kernels: each program of the first writes a row of partial sums, the second adds these rows.

There are no atomics, so every run gives the same bits. There are no locks, so no program waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class PartialSumConfig(Config):
    """Each program adds COLUMNS columns, PARTIALS rows at a time."""

    PARTIALS: int = 128
    COLUMNS: int = 8


@triton.jit(do_not_specialize=["n_partials"])
def sum_partials_kernel(
    partials_ptr, total_ptr, n_partials, n_columns, partial_stride, total_stride,
    COMPUTE: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)  # [COLUMNS]
    in_row = columns < n_columns
    total = tl.zeros([PARTIALS, COLUMNS], COMPUTE)
    for start in range(0, n_partials, PARTIALS):
        partials = start + tl.arange(0, PARTIALS)  # [PARTIALS]
        mask = (partials < n_partials)[:, None] & in_row[None, :]
        offsets = partials.to(tl.int64)[:, None] * partial_stride + columns[None, :]
        total += tl.load(partials_ptr + offsets, mask=mask, other=0.0)  # [PARTIALS, COLUMNS]
    total_offsets = columns.to(tl.int64) * total_stride
    tl.store(total_ptr + total_offsets, tl.sum(total, axis=0).to(total_ptr.dtype.element_ty), mask=in_row)


def partial_sum_config(plan: Plan, partials: int, columns: int) -> PartialSumConfig:
    """Return narrow blocks, so that there are enough programs with few steps each.

    On an H200: the backward of rms_norm at 16384×512 takes 16.7 µs, with blocks of 32 columns 17.6. With many partials
    more loads in flight pay off: 1024×1280 takes 3.7 µs instead of 4.5; 4096×1280 takes 9.3 µs instead of 15.4, with
    eight warps 10.3.
    """
    if plan.device.type == "cpu":  # the interpreter's time goes with the number of programs; the loop still runs
        return PartialSumConfig(PARTIALS=2, COLUMNS=max(bucket(columns // 4), 8))
    block = min(max(bucket(columns // 512), 8), 64)
    if 1536 <= columns < 8192 and partials < 2048:
        # Two sums on an H200: of 132×4096 2.8 µs, with 8 columns 3.1; of 264×4096 3.4 and 4.7; of 528×1792 3.1 and 4.1.
        return PartialSumConfig(num_warps=8 if partials > 264 else 4, PARTIALS=128, COLUMNS=16)
    if block == 8 and partials >= 256:
        return PartialSumConfig(num_warps=16 if partials >= 2048 else 8, PARTIALS=256, COLUMNS=block)
    rows = min(bucket(partials), 1024 // block)
    if columns >= MANY_PROGRAMS * 1024 // rows:
        block = 1024 // rows
    return PartialSumConfig(num_warps=4, PARTIALS=rows, COLUMNS=block)


MANY_PROGRAMS = 512


def plan_sum_of_partials(plan: Plan, partials: Operand, total: Operand, compute: tl.dtype) -> None:
    """Put on the plan: total[c] = Σ over p of partials[p, c]."""
    n_partials, n_columns = partials.shape
    config = partial_sum_config(plan, n_partials, n_columns)
    plan.launch(
        sum_partials_kernel, (triton.cdiv(n_columns, config.COLUMNS),), config,
        partials_ptr=partials, total_ptr=total, n_partials=n_partials, n_columns=n_columns,
        partial_stride=partials.strides[0], total_stride=total.strides[0], COMPUTE=compute,
    )  # fmt: skip
