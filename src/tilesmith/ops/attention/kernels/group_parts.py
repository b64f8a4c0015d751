"""Split a group of query heads over programs: each writes dk and dv of its heads, and another kernel adds them up.

With GQA the program of a block of keys walks along the queries of every head that shares the keys. Few key heads and
few blocks are then few programs, each with much to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import HeadRows, block_of_program, store_tile
from tilesmith.ops.attention.problem import Gradients, Problem
from tilesmith.ops.runtime.config import Config


@triton.jit(do_not_specialize=["n_key_heads", "n_parts", "key_rows"])
def attention_add_parts_kernel(
    dk_parts_ptr, dv_parts_ptr, dk_ptr, dv_ptr, dk_strides, dv_strides, n_key_heads, n_parts, key_rows,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, WALK: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Add up dk and dv of a block of keys. Parts are contiguous: [sequences, key heads, parts, keys, HEAD]."""
    sequence, key_head, start = block_of_program(None, 0, n_key_heads, key_rows, BLOCK_KEYS, False)
    keys = start + tl.arange(0, BLOCK_KEYS)
    columns = tl.arange(0, BLOCK_HEAD)
    mask = (keys < key_rows)[:, None] & (columns < HEAD)[None, :]
    of_part = tl.cast(key_rows, tl.int64) * HEAD
    places = (sequence * n_key_heads + key_head) * n_parts * of_part + (keys * HEAD)[:, None] + columns[None, :]
    dk = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)  # [BLOCK_KEYS, BLOCK_HEAD]
    dv = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)  # [BLOCK_KEYS, BLOCK_HEAD]
    for _ in range(n_parts):
        dk += tl.load(dk_parts_ptr + places, mask=mask, other=0.0).to(COMPUTE)
        dv += tl.load(dv_parts_ptr + places, mask=mask, other=0.0).to(COMPUTE)
        places += of_part
    dk_rows, dv_rows = HeadRows(dk_ptr, dk_strides, 0, key_rows), HeadRows(dv_ptr, dv_strides, 0, key_rows)
    store_tile(dk_rows, (sequence,), key_head, start, dk, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    store_tile(dv_rows, (sequence,), key_head, start, dv, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)


@dataclass(frozen=True)
class AddPartsConfig(Config):
    """Each program takes BLOCK_KEYS keys of a head."""

    BLOCK_KEYS: int = 16


def number_of_parts(problem: Problem, programs: int, least_programs: int) -> int:
    """Return into how many parts to split each group, so that at least so many programs run: a divisor of the group."""
    if problem.packed or problem.per_member is not None:
        return 1
    group = max(problem.group, 1)
    parts = [one for one in range(1, group + 1) if group % one == 0]
    return next((one for one in parts if one * programs >= least_programs), group)


def with_parts(task: Gradients, parts: int) -> Gradients:
    """Return the task with memory for dk and dv of every part; the task itself where there is one."""
    if parts == 1:
        return task
    problem = task.problem
    shape = problem.sequences, problem.key_heads * parts, problem.keys, problem.head_size
    dk, dv = (problem.plan.empty(shape, one.dtype) for one in (task.dk, task.dv))
    return replace(task, dk=dk, dv=dv)


def plan_sum_of_parts(task: Gradients, parted: Gradients, parts: int) -> None:
    """Plan the sums of the parts' gradients; nothing where there is one."""
    if parts == 1:
        return
    problem = task.problem
    config = problem.plan.choose(AddPartsConfig(), "parts", *problem.sizes)
    rows = dict.fromkeys(("dk", "dv"), config.BLOCK_KEYS)
    tiles, walk = problem.tiles(rows, False, dk=task.dk, dv=task.dv)
    problem.plan.launch(
        attention_add_parts_kernel, (problem.key_heads * problem.blocks(problem.keys, config.BLOCK_KEYS),), config,
        **tiles, dk_parts_ptr=parted.dk, dv_parts_ptr=parted.dv, n_key_heads=problem.key_heads, n_parts=parts,
        key_rows=problem.keys, HEAD=problem.head_size, BLOCK_HEAD=problem.head_block, COMPUTE=problem.compute,
        WALK=walk,
    )  # fmt: skip
