"""The mean of v for sequences of a grid whose keys are all masked: equal scores have equal weights.

The other kernels give such a sequence zeros. This kernel reads the mask, and writes to such sequences only. The
gradient is the same computation: dv of each key is the sum of do over the queries, divided by the number of keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand

MASK_AT_ONCE = 1024
ROWS_AT_ONCE = 32


@triton.jit
def fully_masked_kernel(
    source_ptr, target_ptr, mask_ptr, source_strides, target_strides, mask_strides,
    per_member, n_heads, source_rows, target_rows, key_rows,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Store the sum over a head's source rows, divided by the number of keys, in all its target rows."""
    program = tl.program_id(0).to(tl.int64)
    head, sequence = program % n_heads, program // n_heads
    member, place = sequence // per_member, sequence % per_member
    mask_ptr += member * mask_strides[0] + place * mask_strides[1]
    attended = tl.zeros([BLOCK_KEYS], tl.int32)  # [BLOCK_KEYS]
    for start in range(0, key_rows, BLOCK_KEYS):
        keys = (start + tl.arange(0, BLOCK_KEYS)).to(tl.int64)
        attended |= tl.load(mask_ptr + keys * mask_strides[2], mask=keys < key_rows, other=0).to(tl.int32)
    if tl.max(attended, axis=0) != 0:
        return
    source_ptr += member * source_strides[0] + place * source_strides[1] + head * source_strides[2]
    target_ptr += member * target_strides[0] + place * target_strides[1] + head * target_strides[2]
    columns = tl.arange(0, BLOCK_HEAD)[None, :]
    total = tl.zeros([BLOCK_HEAD], COMPUTE)  # [BLOCK_HEAD]
    for start in range(0, source_rows, BLOCK_ROWS):
        rows = (start + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
        exists = (rows < source_rows) & (columns < HEAD)
        values = tl.load(source_ptr + rows * source_strides[3] + columns * source_strides[4], mask=exists, other=0.0)
        total += tl.sum(values.to(COMPUTE), axis=0)
    mean = tl.broadcast_to((total / key_rows)[None, :], BLOCK_ROWS, BLOCK_HEAD)  # [BLOCK_ROWS, BLOCK_HEAD]
    for start in range(0, target_rows, BLOCK_ROWS):
        rows = (start + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
        exists = (rows < target_rows) & (columns < HEAD)
        tl.store(target_ptr + rows * target_strides[3] + columns * target_strides[4], mean, mask=exists)


def plan_fully_masked(problem: Problem, source: Operand, target: Operand) -> None:
    """Plan the means: from v to the output, or from its gradient to dv; all [batch, sequences, heads, rows, head]."""
    if problem.mask is None or not problem.keys:
        return
    problem.plan.launch(
        fully_masked_kernel, (problem.sequences * problem.heads,), Config(num_warps=4),
        source_ptr=source, target_ptr=target, mask_ptr=problem.mask,
        source_strides=source.strides, target_strides=target.strides, mask_strides=problem.mask.strides,
        per_member=problem.per_member, n_heads=problem.heads,
        source_rows=source.shape[3], target_rows=target.shape[3], key_rows=problem.keys,
        HEAD=problem.head_size, BLOCK_HEAD=problem.head_block, COMPUTE=problem.compute,
        BLOCK_KEYS=MASK_AT_ONCE, BLOCK_ROWS=ROWS_AT_ONCE,
    )  # fmt: skip
