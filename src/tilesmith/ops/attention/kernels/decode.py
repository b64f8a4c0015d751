"""The forward for few queries and many keys, as when a model writes one token after another.

Nothing but reading k and v takes time here, so each is read once: all the heads that share them, and all their queries,
make up the rows of one tile. And the keys are split into as many shares as it takes to fill the GPU, each with a
program of its own; the shares' outputs are then weighed against each other by their log₂ Σ 2^score.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import NOT_SPECIALISED, dropout_stream, head_start, keys_seen, query_place
from tilesmith.ops.attention.form import Form
from tilesmith.ops.attention.kernels.forward import attend
from tilesmith.ops.attention.problem import SMALLEST_BLOCK, Problem
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan

MOST_ROWS = 64  # queries of all heads that share keys: more fill a tile of the ordinary kernel
MOST_SHARES = 128


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "n_shares", "keys_per_share"])
def attention_decode_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    n_shares, keys_per_share,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """A share of the keys for all queries of a group of heads. SHARED where there is more than one.

    Then output is [sequences, heads, queries, shares, head size], and lse [sequences, heads, queries, shares], minus
    infinity where a query sees none of the share's keys.
    """
    program = tl.program_id(0)
    share = program % n_shares
    key_head = program // n_shares % (n_heads // group)
    sequence = program // n_shares // (n_heads // group)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_HEAD)
    in_group = rows < group * query_rows
    queries = tl.where(in_group, rows % query_rows, query_rows)
    heads = key_head * group + rows // query_rows
    in_tile = in_group[:, None] & (columns < HEAD)[None, :]
    q_rows = head_start(q_ptr, q_strides, (sequence,), heads, queries)
    q = tl.load(q_rows[:, None] + columns.to(tl.int64)[None, :] * q_strides[3], mask=in_tile, other=0.0)
    stream = dropout_stream(seed_ptr, sequence * n_heads + heads)

    largest = tl.full([ROWS], float("-inf"), COMPUTE)
    total = tl.zeros([ROWS], COMPUTE)
    output = tl.zeros([ROWS, BLOCK_HEAD], COMPUTE)
    share_begin = share * keys_per_share
    share_end = share_begin + keys_per_share
    edges = keys_seen(0, query_rows, key_rows, left, right, query_rows, BLOCK_KEYS)
    for part in tl.static_range(3):
        begin = tl.maximum(edges[part], share_begin)
        for key in tl.range(begin, tl.minimum(edges[part + 1], share_end), BLOCK_KEYS):
            output, largest, total = attend(
                output, largest, total, (q,), (sequence,), heads[:, None], key_head, 0, queries[:, None], 0, key,
                k_ptr, v_ptr, bias_ptr, mask_ptr, stream[:, None], k_strides, v_strides, bias_strides, mask_strides,
                query_rows, key_rows, left, right, scale, softcap, drop_below,
                HEAD, BLOCK_HEAD, PRECISION, WALK, "", False, BLOCK_KEYS, seed_ptr is not None, part != 1,
            )  # fmt: skip

    sees_nothing = total == 0.0
    output *= (keep_scale / tl.where(sees_nothing, 1.0, total))[:, None]
    lse = tl.where(sees_nothing, float("-inf") if SHARED else float("inf"), largest + tl.log2(total))
    place = query_place(None, sequence, heads, n_heads, query_rows, 0) + queries
    part = place * n_shares + share
    tl.store(lse_ptr + part, lse, mask=in_group)
    if SHARED:
        output_rows = output_ptr + part * HEAD
        column_stride = 1
    else:
        output_rows = head_start(output_ptr, output_strides, (sequence,), heads, queries)
        column_stride = output_strides[3]
    pointers = output_rows[:, None] + columns.to(tl.int64)[None, :] * column_stride
    tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=in_tile)


@triton.jit(do_not_specialize=["n_heads", "query_rows", "n_shares"])
def attention_combine_kernel(
    partial_ptr, partial_lse_ptr, output_ptr, lse_ptr, output_strides, n_heads, query_rows, n_shares,
    HEAD: tl.constexpr, COLUMNS: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """One query of one head: its output from what its shares found."""
    row = tl.program_id(0)
    query = row % query_rows
    head = row // query_rows % n_heads
    sequence = row // query_rows // n_heads
    shares = tl.arange(0, SHARES)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = query_place(None, sequence, head, n_heads, query_rows, 0) + query
    first = place * n_shares
    lse = tl.load(partial_lse_ptr + first + shares, mask=shares < n_shares, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    sees_nothing = largest == float("-inf")
    weights = tl.exp2(lse - tl.where(sees_nothing, 0.0, largest))
    total = tl.where(sees_nothing, 1.0, tl.sum(weights, axis=0))
    offsets = (first + shares)[:, None] * HEAD + columns[None, :]
    in_shares = (shares < n_shares)[:, None] & (columns < HEAD)[None, :]
    parts = tl.load(partial_ptr + offsets, mask=in_shares, other=0.0)
    output = tl.sum(parts * weights[:, None], axis=0) / total
    output_row = head_start(output_ptr, output_strides, (sequence,), head, query)
    pointers = output_row + columns.to(tl.int64) * output_strides[3]
    tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=columns < HEAD)
    if tl.program_id(1) == 0:
        tl.store(lse_ptr + place, tl.where(sees_nothing, float("inf"), largest + tl.log2(total)))


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Each program takes BLOCK_KEYS keys at a time, of a share with at least `least_blocks` such blocks."""

    BLOCK_KEYS: int = 64
    least_blocks: int = 2
    programs_per_multiprocessor: int = 2


def decode_config(problem: Problem) -> DecodeConfig:
    keys = 64 if problem.head_block <= 128 and problem.q.element_bytes == 2 else 32
    return DecodeConfig(num_warps=4, num_stages=2, BLOCK_KEYS=keys)


def takes(plan: Plan, problem: Problem) -> bool:
    """Return whether the queries of all heads that share keys fit into one tile."""
    is_dense = not problem.packed and problem.per_member is None
    return is_dense and 0 < problem.queries * problem.group <= MOST_ROWS


def suits(plan: Plan, problem: Problem) -> bool:
    """Return whether there are so many more keys than queries that reading them takes all the time."""
    return problem.queries * 4 <= problem.keys


def plan_decode(plan: Plan, problem: Problem) -> tuple[Operand, Operand]:
    """Output, and log₂ Σ 2^score of each query."""
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    config = plan.choose(decode_config(problem), "decode", problem.head_block, bucket(problem.keys), problem.q.dtype)
    tiles = problem.sequences * problem.key_heads
    shares = shares_of(problem.keys, tiles, plan.multiprocessors, config)
    keys_per_share = triton.cdiv(triton.cdiv(problem.keys, shares), config.BLOCK_KEYS) * config.BLOCK_KEYS
    shares = triton.cdiv(problem.keys, keys_per_share)
    tiles_of, walk = problem.tiles({"k": config.BLOCK_KEYS, "v": config.BLOCK_KEYS}, described=False)
    found, found_lse = output, lse
    if shares > 1:
        found = plan.empty((*lse.shape, shares, problem.head_size), problem.statistics_dtype)
        found_lse = plan.empty((*lse.shape, shares), problem.statistics_dtype)
    plan.launch(
        attention_decode_kernel, (tiles * shares,), config,
        **problem.arguments(), **tiles_of, bias_ptr=problem.bias, q_ptr=problem.q,
        q_strides=problem.strides(problem.q), output_ptr=found,
        output_strides=problem.strides(output), lse_ptr=found_lse, n_shares=shares, keys_per_share=keys_per_share,
        SHARED=shares > 1, ROWS=max(bucket(problem.queries * problem.group), SMALLEST_BLOCK), WALK=walk,
        PRECISION=problem.precision(plan),
    )  # fmt: skip
    if shares > 1:
        columns = min(problem.head_block, 64)
        plan.launch(
            attention_combine_kernel,
            (tiles * problem.group * problem.queries, triton.cdiv(problem.head_size, columns)), Config(num_warps=4),
            partial_ptr=found, partial_lse_ptr=found_lse, output_ptr=output, lse_ptr=lse,
            output_strides=problem.strides(output), n_heads=problem.heads, query_rows=problem.queries, n_shares=shares,
            HEAD=problem.head_size, COLUMNS=columns, SHARES=MOST_SHARES,
        )  # fmt: skip
    return output, lse


def shares_of(keys: int, tiles: int, multiprocessors: int, config: DecodeConfig) -> int:
    """Shares enough to fill the GPU, but none so small that starting it takes longer than reading it."""
    wanted = triton.cdiv(multiprocessors * config.programs_per_multiprocessor, max(tiles, 1))
    most = max(keys // (config.BLOCK_KEYS * config.least_blocks), 1)
    return int(max(min(wanted, most, MOST_SHARES), 1))


DECODE = Form("decode", takes=takes, suits=suits, plan=plan_decode)
