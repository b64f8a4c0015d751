"""The backward of few queries and many keys: the gradients of `decode.py`.

Only reading k and v and writing dk and dv takes time, so each moves once: the queries of all heads that share keys are
the rows of one tile, and a program computes dk and dv of its keys at once, with no sum over heads afterwards. The keys
are split as in the forward. A program has a part of dq, and a second kernel adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, weighed
from tilesmith.ops.attention.device.tiles import (
    NOT_SPECIALISED,
    HeadRows,
    head_start,
    load_tile,
    query_place,
    store_tile,
)
from tilesmith.ops.attention.kernels.decode import FEWEST_KEYS, SPLITS_AT_ONCE, group_pointers
from tilesmith.ops.attention.problem import SMALLEST_BLOCK, Gradients, Problem
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand

MOST_ROWS = 32
"""The most queries of all heads that share keys: more need more registers than there are."""


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "n_splits", "keys_per_split"])
def attention_decode_backward_kernel(
    q_ptr, k_ptr, v_ptr, output_ptr, doutput_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, output_strides, doutput_strides, dq_strides, dk_strides, dv_strides,
    n_heads, group, query_rows, key_rows, left, right, scale, softcap, n_splits, keys_per_split,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one split of the keys, and its part of dq, from all queries of a group of heads.

    SPLIT where there is more than one split. Then dq is [sequences, heads, queries, splits, head size].
    """
    program = tl.program_id(0)
    split = program % n_splits
    key_head = program // n_splits % (n_heads // group)
    sequence = program // n_splits // (n_heads // group)
    place = (sequence,)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_HEAD)
    in_group = rows < group * query_rows
    queries = tl.where(in_group, rows % query_rows, query_rows)
    heads = key_head * group + rows // query_rows
    in_tile = in_group[:, None] & (columns < HEAD)[None, :]
    q = tl.load(group_pointers(q_ptr, q_strides, place, heads, queries, columns), mask=in_tile, other=0.0)
    output_pointers = group_pointers(output_ptr, output_strides, place, heads, queries, columns)
    output = tl.load(output_pointers, mask=in_tile, other=0.0)
    doutput_pointers = group_pointers(doutput_ptr, doutput_strides, place, heads, queries, columns)
    doutput = tl.load(doutput_pointers, mask=in_tile, other=0.0)  # [ROWS, BLOCK_HEAD], as q and output
    delta = tl.sum(output.to(tl.float32) * doutput.to(tl.float32), axis=1)[None, :]  # [1, ROWS]
    row = query_place(None, sequence, heads, n_heads, query_rows, 0) + queries
    lse = tl.load(lse_ptr + row, mask=in_group, other=float("inf"))[None, :]  # [1, ROWS]

    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, None, None)
    k_rows, v_rows = HeadRows(k_ptr, k_strides, 0, key_rows), HeadRows(v_ptr, v_strides, 0, key_rows)
    dk_rows, dv_rows = HeadRows(dk_ptr, dk_strides, 0, key_rows), HeadRows(dv_ptr, dv_strides, 0, key_rows)
    keys = tl.arange(0, BLOCK_KEYS)[:, None]
    dq = tl.zeros([ROWS, BLOCK_HEAD], tl.float32)  # [ROWS, BLOCK_HEAD]
    begin = split * keys_per_split
    for key in tl.range(begin, tl.minimum(begin + keys_per_split, key_rows), BLOCK_KEYS):
        k = load_tile(k_rows, place, key_head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, True)
        v = load_tile(v_rows, place, key_head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, True)
        tile = ScoreTile(place, heads[None, :], 0, key, queries[None, :], keys)
        weights, slope = weighed(
            tl.dot(k, tl.trans(q)), tile, scoring, lse, None, False, False, True
        )  # [BLOCK_KEYS, ROWS]
        dscores = weights * (tl.dot(v, tl.trans(doutput)) - delta)
        if softcap is not None:
            dscores *= slope
        dscores = dscores.to(k.dtype)
        dv = tl.dot(weights.to(v.dtype), doutput)  # [BLOCK_KEYS, BLOCK_HEAD]
        store_tile(dv_rows, place, key_head, key, dv, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
        dk = tl.dot(dscores, q) * scale  # [BLOCK_KEYS, BLOCK_HEAD]
        store_tile(dk_rows, place, key_head, key, dk, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
        dq = tl.dot(tl.trans(dscores), k, dq)

    if SPLIT:
        pointers = (dq_ptr + (row * n_splits + split) * HEAD)[:, None] + columns[None, :]
    else:
        pointers = group_pointers(dq_ptr, dq_strides, place, heads, queries, columns)
    tl.store(pointers, (dq * scale).to(dq_ptr.dtype.element_ty), mask=in_tile)


@triton.jit(do_not_specialize=["n_heads", "query_rows", "n_splits"])
def attention_add_splits_kernel(
    parts_ptr, dq_ptr, dq_strides, n_heads, query_rows, n_splits,
    HEAD: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Add the splits' parts of dq of one query of one head, SPLITS at a time."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_head = columns < HEAD
    dq = tl.zeros([SPLITS, COLUMNS], tl.float32)
    for begin in range(0, n_splits, SPLITS):
        splits = begin + tl.arange(0, SPLITS)
        offsets = (row.to(tl.int64) * n_splits + splits)[:, None] * HEAD + columns[None, :]
        dq += tl.load(parts_ptr + offsets, mask=(splits < n_splits)[:, None] & in_head[None, :], other=0.0)
    head = row // query_rows
    dq_row = head_start(dq_ptr, dq_strides, (head // n_heads,), head % n_heads, row % query_rows)
    pointers = dq_row + columns.to(tl.int64) * dq_strides[3]
    tl.store(pointers, tl.sum(dq, axis=0).to(dq_ptr.dtype.element_ty), mask=in_head)


@dataclass(frozen=True)
class DecodeBackwardConfig(Config):
    """Each program takes BLOCK_KEYS keys at a time. `described`: TMA moves them, if it can walk the tensors."""

    BLOCK_KEYS: int = 64
    described: bool = False
    programs_per_multiprocessor: int = 4


def decode_backward_config(problem: Problem) -> DecodeBackwardConfig:
    """Return the default configuration.

    In µs on an H200, by TMA, as the portable backward, and PyTorch: b3 h16, 16,384 keys, d128: 235 (652; 256), b22
    h12, 4,096 keys, d96: 237 (604; 340), 71 heads, 5,327 keys, d80: 78.8 (255; 119), b8 h16 on 8, 11,777 keys, d64: 119
    (430; 437), b3 h12, 8,192 keys, d32: 25.6 (158; 64.4), b23 h28 on 4, 128 keys, d96: 6.4 (83.3; 45.2). Three stages
    for up to 16 rows: with two, d32 takes 27.7; for 17 to 32 rows two: b2 h16 on 4, 5 queries, 3,001 keys, d96 11.5,
    and 16.5 with three.
    """
    is_wide = problem.head_block > 128
    one_block = problem.queries * problem.group <= SMALLEST_BLOCK
    if problem.describable():
        several = one_block and not is_wide
        return DecodeBackwardConfig(
            num_stages=3 if several else 2, BLOCK_KEYS=32 if is_wide else 64, described=True,
            programs_per_multiprocessor=4 if several else 2,
        )  # fmt: skip
    return DecodeBackwardConfig(num_warps=8 if is_wide else 4, num_stages=2, BLOCK_KEYS=32)


def _splits_of(problem: Problem, tiles: int, config: DecodeBackwardConfig) -> int:
    """Return into how many splits the keys are divided, so that the programs fill the GPU."""
    if problem.keys <= FEWEST_KEYS:
        return 1
    wanted = triton.cdiv(problem.plan.multiprocessors * config.programs_per_multiprocessor, max(tiles, 1))
    return int(min(wanted, triton.cdiv(problem.keys, config.BLOCK_KEYS)))


def plan_decode_backward(task: Gradients) -> tuple[Operand, ...]:
    """Plan dq, dk and dv."""
    plan, problem = task.problem.plan, task.problem
    config = plan.choose(decode_backward_config(problem), "decode", *problem.sizes)
    tiles = problem.sequences * problem.key_heads
    splits = _splits_of(problem, tiles, config)
    keys_per_split = triton.cdiv(triton.cdiv(problem.keys, splits), config.BLOCK_KEYS) * config.BLOCK_KEYS
    splits = triton.cdiv(problem.keys, keys_per_split)
    rows = dict.fromkeys(("k", "v", "dk", "dv"), config.BLOCK_KEYS)
    moved, walk = problem.tiles(rows, config.described, dk=task.dk, dv=task.dv)
    parts_shape = (*task.lse.shape, splits, problem.head_size)
    found = task.dq if splits == 1 else plan.empty(parts_shape, problem.statistics_dtype)
    given = {"q": problem.q, "output": task.output, "doutput": task.doutput}
    known = problem.arguments()
    names = ("n_heads", "group", "query_rows", "key_rows", "left", "right", "scale", "softcap", "HEAD", "BLOCK_HEAD")
    plan.launch(
        attention_decode_backward_kernel, (tiles * splits,), config, **moved,
        **{f"{name}_ptr": one for name, one in given.items()},
        **{f"{name}_strides": one.strides for name, one in given.items()}, lse_ptr=task.lse, dq_ptr=found,
        dq_strides=task.dq.strides, n_splits=splits, keys_per_split=keys_per_split, SPLIT=splits > 1,
        ROWS=max(bucket(problem.queries * problem.group), SMALLEST_BLOCK), WALK=walk,
        **{name: known[name] for name in names},
    )  # fmt: skip
    if splits > 1:
        columns = min(problem.head_block, 64)
        plan.launch(
            attention_add_splits_kernel,
            (problem.sequences * problem.heads * problem.queries, triton.cdiv(problem.head_size, columns)),
            Config(num_warps=4), parts_ptr=found, dq_ptr=task.dq, dq_strides=task.dq.strides, n_heads=problem.heads,
            query_rows=problem.queries, n_splits=splits, HEAD=problem.head_size, COLUMNS=columns,
            SPLITS=SPLITS_AT_ONCE,
        )  # fmt: skip
    return task.dq, task.dk, task.dv


class DecodeBackward:
    """The gradients of few queries and many keys, in half precision."""

    def takes(self, task: Gradients) -> bool:
        """Return whether scores are plain, and the tiles of all queries that share keys fit into registers.

        Rows of no whole units take an address for each element.
        """
        problem, rows = task.problem, task.problem.queries * task.problem.group
        is_dense = not problem.packed and problem.per_member is None and problem.q.element_bytes == 2
        adds_nothing = problem.bias is None and problem.mask is None and problem.seed is None
        in_units = all(one.describable() for one in (problem.k, problem.v, task.dk, task.dv))
        widest = 256 if problem.describable() or rows <= SMALLEST_BLOCK else 128
        fits = 0 < rows <= MOST_ROWS and problem.head_block <= widest
        return is_dense and adds_nothing and in_units and fits and problem.keys > 0

    def suits(self, task: Gradients) -> bool:
        """Return whether reading keys and values dominates, as in the forward."""
        return task.problem.queries * 4 <= task.problem.keys

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        return plan_decode_backward(task)
