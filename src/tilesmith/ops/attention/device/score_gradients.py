"""ds in memory: the gradients of the scores of a chunk of sequences.

They lie as [sequences of the chunk, heads, keys, queries], turned as the kernel that writes them has them, with rows of
a whole number of units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.plan import Operand

QUERY_UNIT = tl.constexpr(16)
"""Rows are filled up to a multiple of this many queries, so that all begin where 16 bytes can be moved at once."""

# The last programs of every chunk leave most of a GPU idle, and what the L2 cache could hold is too little to make up
# for that: 264 µs for 256 sequences of 256 residues in one chunk on an H200, 293 in two, 314 in four. 32 bits count so
# many elements.
MOST_BYTES = 256 * 2**20
MOST_BYTES_OF_SUMS = 32 * 2**20


@triton.jit
def dscores_at(
    ptr, sequence, head, key, query, n_heads, query_rows, key_rows, BLOCK_KEYS: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
):  # fmt: skip
    """Where a tile [keys, queries] lies, and which of it there is; of several sequences, one per first dimension."""
    width = tl.cdiv(query_rows, QUERY_UNIT) * QUERY_UNIT
    keys = key + tl.arange(0, BLOCK_KEYS)[:, None]
    queries = query + tl.arange(0, BLOCK_QUERIES)[None, :]
    row = (sequence * n_heads + head) * key_rows + keys
    return ptr + (row * width + queries), (keys < key_rows) & (queries < width)


@triton.jit
def store_dscores(target, sequence, head, key, query, n_heads, query_rows, key_rows, values, WALK: tl.constexpr):
    """A tile [keys, queries]; nothing beyond the last key. Beyond the last query there may be anything."""
    BLOCK_KEYS: tl.constexpr = values.shape[0]
    BLOCK_QUERIES: tl.constexpr = values.shape[1]
    if WALK == "described":
        target.store([sequence, head, key, query], values.reshape(1, 1, BLOCK_KEYS, BLOCK_QUERIES))
    else:
        pointers, inside = dscores_at(
            target, sequence, head, key, query, n_heads, query_rows, key_rows, BLOCK_KEYS, BLOCK_QUERIES
        )
        tl.store(pointers, values, mask=inside)


@triton.jit
def load_dscores(
    source, sequence, head, key, query, n_heads, query_rows, key_rows,
    BLOCK_KEYS: tl.constexpr, BLOCK_QUERIES: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """A tile [keys, queries], zeros beyond the last key."""
    if WALK == "described":
        tile = source.load([sequence, head, key, query]).reshape(BLOCK_KEYS, BLOCK_QUERIES)
    else:
        pointers, inside = dscores_at(
            source, sequence, head, key, query, n_heads, query_rows, key_rows, BLOCK_KEYS, BLOCK_QUERIES
        )
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tile


@dataclass(frozen=True)
class Chunk:
    """So many sequences, from this one on, and the memory that their ds goes to."""

    dscores: Operand
    first: int
    count: int


def dscores_shape(problem: Problem) -> tuple[int, int, int]:
    """Of one sequence."""
    unit = int(QUERY_UNIT.value)
    return problem.heads, problem.keys, triton.cdiv(problem.queries, unit) * unit


def sequences_that_fit(problem: Problem) -> int:
    """How many sequences' ds there is room for at most; 0 where one is too long already."""
    return MOST_BYTES // (max(math.prod(dscores_shape(problem)), 1) * problem.q.element_bytes)


def spans(sequences: int, per_bias: int, most: int) -> Iterator[tuple[int, int]]:
    """The first sequence and the number of sequences of each chunk, of `most` at most.

    All sequences of several biases where those of one fit, else an equal part of those of one: no chunk has a part of
    those of two.
    """
    if most >= per_bias:
        stretch, step = sequences, most // per_bias * per_bias
    else:
        stretch, step = per_bias, triton.cdiv(per_bias, triton.cdiv(per_bias, most))
    for begin in range(0, sequences, stretch):
        for first in range(begin, begin + stretch, step):
            yield first, min(step, begin + stretch - first)
