"""A copy of a bias that TMA can load, for a grid whose sequences share it.

TMA needs rows that start at multiples of 16 bytes; a bias of 301 keys has none. Each sequence would gather its elements
one by one. A copy with padded rows costs as much as one sequence's reading.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.config import Config

FEWEST_SEQUENCES = 8  # that share a bias
COPIED_AT_ONCE = 1024


@triton.jit
def aligned_bias_kernel(
    bias_ptr, copy_ptr, bias_strides, n_heads, n_queries, n_keys, copy_stride, BLOCK_KEYS: tl.constexpr
):
    """Copy the keys of one query into a padded row."""
    row = tl.program_id(0).to(tl.int64)
    query, head = row % n_queries, row // n_queries % n_heads
    start = row // n_queries // n_heads * bias_strides[0] + head * bias_strides[1] + query * bias_strides[2]
    for first in range(0, n_keys, BLOCK_KEYS):
        keys = first + tl.arange(0, BLOCK_KEYS)  # [BLOCK_KEYS]
        values = tl.load(bias_ptr + start + keys * bias_strides[3], mask=keys < n_keys)
        tl.store(copy_ptr + row * copy_stride + keys, values, mask=keys < n_keys)


def with_aligned_bias(problem: Problem) -> Problem:
    """Return the problem, with a copy of its bias if only the bias keeps TMA from loading all tiles."""
    bias = problem.bias
    if bias is None or problem.per_member is None or problem.has_describable_bias or not problem.describable():
        return problem
    if problem.sequences_per_bias < FEWEST_SEQUENCES or 0 in bias.shape:
        return problem
    members, heads, queries, keys = problem.bias_shape
    padded = -(-keys * bias.element_bytes // 16) * 16 // bias.element_bytes
    memory = problem.plan.empty((members, heads, queries, padded), bias.dtype)
    problem.plan.launch(
        aligned_bias_kernel, (members * heads * queries,), Config(num_warps=4), bias_ptr=bias, copy_ptr=memory,
        bias_strides=problem.bias_strides(), n_heads=heads, n_queries=queries, n_keys=keys, copy_stride=padded,
        BLOCK_KEYS=COPIED_AT_ONCE,
    )  # fmt: skip
    return replace(problem, bias=memory.seen_as(problem.bias_shape, memory.strides))
