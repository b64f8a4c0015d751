"""The backward for sequences that share a bias whose gradient is wanted: scores are computed once, not three times.

The kernel that computes dk and dv stores ds in half precision. Two kernels read ds: dq = scale · ds · k for each
sequence, and dbias = Σ over sequences of ds. All scores together would be as large as PyTorch's, so the backward goes
chunk by chunk of sequences. A chunk adds to the sums of the chunks before it: five products in all, no atomics, the
same bits at every run.

Reading ds moves 2 bytes; computing it again takes 4·D flops and an exponential. One kernel for both dq and dbias would
read ds once, but would hold a sum of 4 bytes for each query and key in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from tilesmith.ops.attention.device.score_gradients import (
    MOST_BYTES_OF_SUMS,
    Chunk,
    ScoreSizes,
    dscores_at,
    dscores_shape,
    load_dscores,
    sequences_that_fit,
    spans,
)
from tilesmith.ops.attention.device.split_operands import StoredParts
from tilesmith.ops.attention.device.tiles import (
    HeadRows,
    block_of_program,
    is_attended,
    load_tile,
    place_of,
    store_tile,
)
from tilesmith.ops.attention.kernels.backward import plan_key_gradients
from tilesmith.ops.attention.kernels.backward_tiles import GradientConfig, key_gradient_config
from tilesmith.ops.attention.kernels.delta import plan_delta
from tilesmith.ops.attention.problem import Gradients, Problem
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan

NOT_SPECIALISED = ("first_sequence", "n_sequences", "per_bias", "per_member", "n_heads", "query_rows", "key_rows")


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_dq_of_chunk_kernel(
    dscores_ptr, k_ptr, mask_ptr, dq_ptr, k_strides, mask_strides, dq_strides,
    first_sequence, per_member, n_heads, query_rows, key_rows, scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, WALK: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dq of a block of queries of a sequence in the chunk."""
    place_in_chunk, head, start = block_of_program(None, 0, n_heads, query_rows, BLOCK_QUERIES, False)
    place = place_of(first_sequence + place_in_chunk, per_member)
    sizes = ScoreSizes(n_heads, query_rows, key_rows)
    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    dq_rows = HeadRows(dq_ptr, dq_strides, 0, query_rows)
    dq = tl.zeros([BLOCK_QUERIES, BLOCK_HEAD], COMPUTE)  # [BLOCK_QUERIES, BLOCK_HEAD]
    for key in tl.range(0, key_rows, BLOCK_KEYS):
        dscores = load_dscores(dscores_ptr, sizes, place_in_chunk, head, key, start, BLOCK_KEYS, BLOCK_QUERIES, WALK)
        k = load_tile(k_rows, place, head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, True)  # [BLOCK_KEYS, BLOCK_HEAD]
        if mask_ptr is not None:
            keys = tl.arange(0, BLOCK_KEYS)[:, None]
            k = tl.where(is_attended(mask_ptr, mask_strides, place, key, keys, key_rows), k, 0.0)
        dq = tl.dot(tl.trans(dscores), k, dq, out_dtype=COMPUTE)
    store_tile(dq_rows, place, head, start, dq * scale, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "per_split", "split_size"])
def attention_dbias_of_chunk_kernel(
    dscores_ptr, sums_ptr, first_sequence, n_sequences, per_bias, per_split, n_heads, query_rows, key_rows, split_size,
    COMPUTE: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Add the ds of this chunk to a tile of partial sums over the sequences of a bias.

    Sums are [partial sums, biases, heads, queries, keys]. BLOCK_SEQUENCES loads are in flight at once.
    """
    key_blocks = tl.cdiv(key_rows, BLOCK_KEYS)
    query_blocks = tl.cdiv(query_rows, BLOCK_QUERIES)
    program, split = tl.program_id(0), tl.program_id(1)
    query = program % query_blocks * BLOCK_QUERIES
    key = program // query_blocks % key_blocks * BLOCK_KEYS
    head = program // query_blocks // key_blocks % n_heads
    bias = program // query_blocks // key_blocks // n_heads
    begin = bias * per_bias + split * per_split
    end = tl.minimum(tl.minimum(begin + per_split, (bias + 1) * per_bias), n_sequences)
    sizes = ScoreSizes(n_heads, query_rows, key_rows)
    total = tl.zeros([BLOCK_KEYS, BLOCK_QUERIES], COMPUTE)  # [BLOCK_KEYS, BLOCK_QUERIES]
    for start in tl.range(begin, end, BLOCK_SEQUENCES):
        sequences = (start + tl.arange(0, BLOCK_SEQUENCES))[:, None, None]
        pointers, inside = dscores_at(dscores_ptr, sizes, sequences, head, key, query, BLOCK_KEYS, BLOCK_QUERIES)
        total += tl.sum(tl.load(pointers, mask=inside & (sequences < end), other=0.0).to(COMPUTE), axis=0)
    keys = (key + tl.arange(0, BLOCK_KEYS))[:, None]
    queries = (query + tl.arange(0, BLOCK_QUERIES))[None, :]
    row = (first_sequence // per_bias + bias).to(tl.int64) * n_heads + head
    pointers = sums_ptr + split.to(tl.int64) * split_size + ((row * query_rows + queries) * key_rows + keys)
    inside = (keys < key_rows) & (queries < query_rows)
    total += tl.load(pointers, mask=inside & (first_sequence % per_bias != 0), other=0.0)
    tl.store(pointers, total, mask=inside)


@dataclass(frozen=True)
class ChunkedConfig(GradientConfig):
    """For the kernel that computes dk and dv, and stores ds of `chunk_sequences` at a time. 0 turns this form off."""

    chunk_sequences: int = 0


@dataclass(frozen=True)
class ChunkQueriesConfig(Config):
    """Tiles of BLOCK_QUERIES × BLOCK_KEYS. `described`: TMA loads them, if it can walk the tensors."""

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True


@dataclass(frozen=True)
class ChunkBiasConfig(Config):
    """Each program sums a tile of BLOCK_QUERIES × BLOCK_KEYS over some sequences, BLOCK_SEQUENCES at a time."""

    BLOCK_SEQUENCES: int = 4
    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 32
    programs_per_multiprocessor: int = 12  # 48 µs for a triangle of 256 residues, 55 with twice as many


def choose_chunks(task: Gradients) -> ChunkedConfig:
    """Return the configuration to launch with, of no more sequences than fit."""
    problem = task.problem
    default = chunked_config(problem, problem.describable(task.output, task.doutput))
    config = problem.plan.choose(default, "chunks", *problem.sizes)
    return replace(config, chunk_sequences=min(config.chunk_sequences, sequences_that_fit(problem)))


def chunked_config(problem: Problem, described: bool) -> ChunkedConfig:
    """Return the default configuration.

    A triangle of 256 residues in bf16 on an H200 takes 134 µs with 128 keys and 154 with 64. All kernels of the
    backward take 245 and 264, and 285 where each computes its scores again.
    """
    config = key_gradient_config(problem, described, split=False)
    is_whole = problem.keys <= config.BLOCK_KEYS  # one block computes dq too, and need not store ds
    if described and problem.head_block <= 32 and not problem.gathers_bias:
        config = replace(config, BLOCK_QUERIES=32, BLOCK_KEYS=128)
    return ChunkedConfig(**config.fields(), chunk_sequences=0 if is_whole else sequences_that_fit(problem))


def chunk_queries_config(described: bool) -> ChunkQueriesConfig:
    """Return the default tiles of the kernel that computes dq."""
    if described:
        return ChunkQueriesConfig(num_stages=3)
    return ChunkQueriesConfig(BLOCK_KEYS=32, described=False)  # the addresses of 64 keys exceed the register budget


def plan_chunked_backward(task: Gradients) -> tuple[Operand, ...]:
    """Plan dq, dk, dv and dbias."""
    problem, plan = task.problem, task.problem.plan
    assert problem.bias is not None
    config = choose_chunks(task)
    dbias = plan.empty(problem.bias.shape, problem.bias.dtype)
    statistics = plan.empty(problem.statistics_shape, problem.statistics_dtype)
    plan_delta(plan, task, statistics)
    chunks = list(spans(problem.sequences, problem.sequences_per_bias, config.chunk_sequences))
    room = plan.empty((max(count for _, count in chunks), *dscores_shape(problem)), problem.q.dtype)
    queries_config = plan.choose(chunk_queries_config(problem.describable()), "chunk queries", *problem.sizes)
    bias_config = plan.choose(ChunkBiasConfig(), "chunk bias", *problem.sizes)
    splits = _splits(plan, problem, bias_config, chunks[0][1])
    sums = plan.empty((splits, math.prod(dbias.shape)), problem.statistics_dtype)
    parts = StoredParts(plan, problem)
    for first, count in chunks:
        chunk = Chunk(room, first, count)
        plan_key_gradients(plan, task, config, parts, statistics, False, chunk)
        _plan_dq(plan, problem, queries_config, chunk, task.dq)
        _plan_dbias(plan, problem, bias_config, chunk, sums)
    plan_sum_of_partials(plan, sums, dbias.seen_as((sums.shape[1],), (1,)), problem.compute)
    return task.dq, task.dk, task.dv, dbias


def _plan_dq(plan: Plan, problem: Problem, config: ChunkQueriesConfig, chunk: Chunk, dq: Operand) -> None:
    rows = {"k": config.BLOCK_KEYS, "dq": config.BLOCK_QUERIES}
    tiles, walk = problem.tiles(rows, config.described, dq=dq)
    block = (1, 1, config.BLOCK_KEYS, config.BLOCK_QUERIES)
    blocks = chunk.count * triton.cdiv(problem.queries, config.BLOCK_QUERIES)
    plan.launch(
        attention_dq_of_chunk_kernel, (problem.heads * blocks,), config, **tiles,
        dscores_ptr=chunk.dscores.descriptor(block) if walk == "described" else chunk.dscores,
        mask_ptr=problem.mask, mask_strides=problem.mask.strides if problem.mask is not None else (0, 0),
        first_sequence=chunk.first, per_member=problem.per_member, n_heads=problem.heads,
        query_rows=problem.queries, key_rows=problem.keys, scale=float(problem.scale),
        HEAD=problem.head_size, BLOCK_HEAD=problem.head_block, COMPUTE=problem.compute, WALK=walk,
    )  # fmt: skip


def _splits(plan: Plan, problem: Problem, config: ChunkBiasConfig, sequences: int) -> int:
    """Return how many partial sums over the sequences of a chunk to make."""
    assert problem.bias is not None
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    wanted = programs // max(_tiles_of_sums(problem, config, sequences), 1)
    room = MOST_BYTES_OF_SUMS // max(math.prod(problem.bias.shape) * problem.statistics_dtype.itemsize, 1)
    return max(min(wanted, room, sequences // config.BLOCK_SEQUENCES), 1)


def _tiles_of_sums(problem: Problem, config: ChunkBiasConfig, sequences: int) -> int:
    """Return the number of bias tiles of a given number of sequences."""
    tiles: int = triton.cdiv(problem.keys, config.BLOCK_KEYS) * triton.cdiv(problem.queries, config.BLOCK_QUERIES)
    biases: int = triton.cdiv(sequences, problem.sequences_per_bias)
    return biases * problem.heads * tiles


def _plan_dbias(plan: Plan, problem: Problem, config: ChunkBiasConfig, chunk: Chunk, sums: Operand) -> None:
    splits, split_size = sums.shape
    per_split = triton.cdiv(min(problem.sequences_per_bias, chunk.count), splits)
    plan.launch(
        attention_dbias_of_chunk_kernel, (_tiles_of_sums(problem, config, chunk.count), splits), config,
        dscores_ptr=chunk.dscores, sums_ptr=sums, first_sequence=chunk.first, n_sequences=chunk.count,
        per_bias=problem.sequences_per_bias, per_split=per_split, n_heads=problem.heads,
        query_rows=problem.queries, key_rows=problem.keys, split_size=split_size, COMPUTE=problem.compute,
    )  # fmt: skip


class ChunkedBackward:
    """Sequences that share a bias whose gradient is wanted."""

    def takes(self, task: Gradients) -> bool:
        return task.wants_dbias and task.problem.shares_bias

    def suits(self, task: Gradients) -> bool:
        """Return whether a chunk has sequences: none where one block holds all keys, and dq needs no stored ds."""
        return choose_chunks(task).chunk_sequences > 0

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        return plan_chunked_backward(task)
