"""ds in memory: the gradients of the scores of a chunk of sequences.

The tensor is [sequences of the chunk, heads, keys, queries]: transposed, as the kernel that writes ds holds it. A row
is padded to a whole number of units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.plan import Operand

QUERY_UNIT = tl.constexpr(16)
"""Rows are padded to a multiple of 16 queries, so that each begins at a multiple of 16 bytes."""

# The tail of every chunk idles most of the GPU, and chunks that fit in the L2 cache do not make up for that: 256
# sequences of 256 residues take 264 µs in one chunk on an H200, 293 in two, 314 in four. 32 bits count the elements.
MOST_BYTES = 256 * 2**20
MOST_BYTES_OF_SUMS = 32 * 2**20


class ScoreSizes(NamedTuple):
    """The sizes of ds of one sequence."""

    n_heads: Any
    query_rows: Any
    key_rows: Any


@triton.jit
def dscores_at(
    ptr, sizes, sequence, head, key, query, BLOCK_KEYS: tl.constexpr, BLOCK_QUERIES: tl.constexpr
):  # fmt: skip
    """Return pointers to a tile [keys, queries], and which of its elements exist.

    `sequence` may be a tensor of several sequences along a first dimension.
    """
    width = tl.cdiv(sizes.query_rows, QUERY_UNIT) * QUERY_UNIT
    keys = key + tl.arange(0, BLOCK_KEYS)[:, None]
    queries = query + tl.arange(0, BLOCK_QUERIES)[None, :]
    row = (sequence * sizes.n_heads + head) * sizes.key_rows + keys
    return ptr + (row * width + queries), (keys < sizes.key_rows) & (queries < width)


@triton.jit
def store_dscores(target, sizes, sequence, head, key, query, values, WALK: tl.constexpr):
    """Store a tile [keys, queries], but no key past the last. Columns past the last query hold any value."""
    BLOCK_KEYS: tl.constexpr = values.shape[0]
    BLOCK_QUERIES: tl.constexpr = values.shape[1]
    if WALK == "described":
        target.store([sequence, head, key, query], values.reshape(1, 1, BLOCK_KEYS, BLOCK_QUERIES))
    else:
        pointers, exists = dscores_at(target, sizes, sequence, head, key, query, BLOCK_KEYS, BLOCK_QUERIES)
        tl.store(pointers, values, mask=exists)


@triton.jit
def load_dscores(
    source, sizes, sequence, head, key, query,
    BLOCK_KEYS: tl.constexpr, BLOCK_QUERIES: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Load a tile [keys, queries], with zeros past the last key."""
    if WALK == "described":
        tile = source.load([sequence, head, key, query]).reshape(BLOCK_KEYS, BLOCK_QUERIES)
    else:
        pointers, exists = dscores_at(source, sizes, sequence, head, key, query, BLOCK_KEYS, BLOCK_QUERIES)
        tile = tl.load(pointers, mask=exists, other=0.0)
    return tile


@dataclass(frozen=True)
class Chunk:
    """`count` sequences from `first` on, and the memory for their ds."""

    dscores: Operand
    first: int
    count: int


def dscores_shape(problem: Problem) -> tuple[int, int, int]:
    """Return the shape of ds of one sequence."""
    unit = int(QUERY_UNIT.value)
    return problem.heads, problem.keys, triton.cdiv(problem.queries, unit) * unit


def sequences_that_fit(problem: Problem) -> int:
    """Return for how many sequences MOST_BYTES hold ds; 0 where one is too long."""
    return MOST_BYTES // (max(math.prod(dscores_shape(problem)), 1) * problem.q.element_bytes)


def spans(sequences: int, per_bias: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first sequence and the number of sequences of each chunk of at most `most`.

    A chunk has all sequences of one or more biases, or an equal part of the sequences of one bias.
    """
    if most >= per_bias:
        stretch, step = sequences, most // per_bias * per_bias
    else:
        stretch, step = per_bias, triton.cdiv(per_bias, triton.cdiv(per_bias, most))
    for begin in range(0, sequences, stretch):
        for first in range(begin, begin + stretch, step):
            yield first, min(step, begin + stretch - first)
