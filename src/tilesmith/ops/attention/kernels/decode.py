"""The forward for few queries and many keys, as when a model generates one token after another.

Only reading k and v takes time, so each is read once: the queries of all heads that share keys are the rows of one
tile. The keys are split into as many parts as fill the GPU, with one program each (flash decoding). A second kernel
combines the outputs of the splits by their log₂ Σ 2^score.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring
from tilesmith.ops.attention.device.split_operands import multiplied, only_rows
from tilesmith.ops.attention.device.tiles import (
    NOT_SPECIALISED,
    HeadRows,
    dropout_stream,
    head_start,
    is_attended,
    is_kept,
    keys_seen,
    load_tile,
    parts_of_keys,
    query_place,
)
from tilesmith.ops.attention.kernels.decode_one_row import attention_decode_row_kernel, suits_one_row
from tilesmith.ops.attention.kernels.forward import softmax_step, visible_scores
from tilesmith.ops.attention.problem import SMALLEST_BLOCK, Problem
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand

FEW_ROWS, MOST_ROWS = 64, 128
"""The most queries of all heads that share keys: of any problem, and of plain ones in half precision with heads of 128.
"""
MOST_SPLITS, SPLITS_AT_ONCE = 128, 32


@triton.jit
def group_pointers(ptr, strides, place, heads, queries, columns):
    """Return pointers to some columns of some queries of some heads, [queries, columns]."""
    rows = head_start(ptr, strides, place, heads, queries)
    return rows[:, None] + columns.to(tl.int64)[None, :] * strides[3]


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "n_splits", "keys_per_split"])
def attention_decode_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    n_splits, keys_per_split,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the output and lse of all queries of a group of heads for one split of the keys.

    SPLIT where there is more than one split. Then output is [sequences, heads, queries, splits, head size], and lse is
    [sequences, heads, queries, splits], with −∞ where a query sees none of the split's keys.
    """
    HAS_MASK: tl.constexpr = mask_ptr is not None
    CHECKED: tl.constexpr = (True, False, True, False)  # by part
    MASKED: tl.constexpr = (HAS_MASK, False, HAS_MASK, HAS_MASK)
    program = tl.program_id(0)
    split = program % n_splits
    key_head = program // n_splits % (n_heads // group)
    sequence = program // n_splits // (n_heads // group)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_HEAD)
    in_group = rows < group * query_rows
    queries = tl.where(in_group, rows % query_rows, query_rows)
    heads = key_head * group + rows // query_rows
    in_tile = in_group[:, None] & (columns < HEAD)[None, :]
    q = tl.load(group_pointers(q_ptr, q_strides, (sequence,), heads, queries, columns), mask=in_tile, other=0.0)
    stream = dropout_stream(seed_ptr, sequence * n_heads + heads)

    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    v_rows = HeadRows(v_ptr, v_strides, 0, key_rows)
    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, bias_ptr, bias_strides)
    place = (sequence,)
    keys = tl.arange(0, BLOCK_KEYS)

    largest = tl.full([ROWS], float("-inf"), COMPUTE)  # [ROWS]
    total = tl.zeros([ROWS], COMPUTE)
    output = tl.zeros([ROWS, BLOCK_HEAD], COMPUTE)  # [ROWS, BLOCK_HEAD]
    split_begin = split * keys_per_split
    split_end = split_begin + keys_per_split
    edges = keys_seen(0, query_rows, key_rows, left, right, query_rows, BLOCK_KEYS)
    # The mask is read once before the keys. b16 h32 on 8, 2,048 keys, d128 on an H200: padding 56.8 → 30.3 µs,
    # holes 59.2 → 44.0 (cuDNN 44.7).
    begins, ends = parts_of_keys(
        edges, mask_ptr, mask_strides, place, tl.minimum(split_end, key_rows), BLOCK_KEYS, split_begin
    )  # fmt: skip
    for part in tl.static_range(4 if HAS_MASK else 3):
        begin = tl.maximum(begins[part], split_begin)
        for key in tl.range(begin, tl.minimum(ends[part], split_end), BLOCK_KEYS):
            tile = ScoreTile(place, heads[:, None], 0, key, queries[:, None], keys[None, :])
            k = load_tile(k_rows, place, key_head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED[part])
            scores, factor = visible_scores(
                (q,), (k,), tile, scoring, mask_ptr if MASKED[part] else None, mask_strides, COMPUTE, PRECISION, False,
                CHECKED[part],
            )  # fmt: skip
            weights, shrink, largest, total = softmax_step(
                scores, factor, largest, total, CHECKED[part] or MASKED[part] or bias_ptr is not None
            )
            if seed_ptr is not None:
                kept = is_kept(stream[:, None], tile.rows, key + tile.columns, drop_below)
                weights = tl.where(kept, weights, 0.0)
            v = (load_tile(v_rows, place, key_head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED[part]),)
            if MASKED[part]:
                v = only_rows(v, is_attended(mask_ptr, mask_strides, place, key, keys[:, None], key_rows))
            output *= shrink[:, None]
            output = multiplied((weights.to(v[0].dtype),), v, output, COMPUTE, PRECISION)  # [ROWS, BLOCK_HEAD]

    sees_nothing = total == 0.0
    output *= (keep_scale / tl.where(sees_nothing, 1.0, total))[:, None]
    lse = tl.where(sees_nothing, float("-inf") if SPLIT else float("inf"), largest + tl.log2(total))
    row = query_place(None, sequence, heads, n_heads, query_rows, 0) + queries
    row_of_split = row * n_splits + split
    tl.store(lse_ptr + row_of_split, lse, mask=in_group)
    if SPLIT:
        pointers = (output_ptr + row_of_split * HEAD)[:, None] + columns[None, :]
    else:
        pointers = group_pointers(output_ptr, output_strides, (sequence,), heads, queries, columns)
    tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=in_tile)


@triton.jit(do_not_specialize=["n_heads", "query_rows", "n_splits"])
def attention_combine_kernel(
    partial_ptr, partial_lse_ptr, output_ptr, lse_ptr, output_strides, n_heads, query_rows, n_splits,
    HEAD: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one query of one head, SPLITS at a time. There are at most MOST."""
    row = tl.program_id(0)
    query = row % query_rows
    head = row // query_rows % n_heads
    sequence = row // query_rows // n_heads
    splits = tl.arange(0, MOST)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = query_place(None, sequence, head, n_heads, query_rows, 0) + query
    first = place * n_splits
    lse = tl.load(partial_lse_ptr + first + splits, mask=splits < n_splits, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    sees_nothing = largest == float("-inf")
    weights = tl.exp2(lse - tl.where(sees_nothing, 0.0, largest))  # [MOST]
    total = tl.where(sees_nothing, 1.0, tl.sum(weights, axis=0))
    output = tl.zeros([COLUMNS], total.dtype)
    for begin in range(0, n_splits, SPLITS):
        some = begin + tl.arange(0, SPLITS)
        is_split = some < n_splits
        some_lse = tl.load(partial_lse_ptr + first + some, mask=is_split, other=float("-inf"))
        some_weights = tl.exp2(some_lse - tl.where(sees_nothing, 0.0, largest))  # [SPLITS]
        offsets = (first + some)[:, None] * HEAD + columns[None, :]
        in_splits = is_split[:, None] & (columns < HEAD)[None, :]
        parts = tl.load(partial_ptr + offsets, mask=in_splits, other=0.0)  # [SPLITS, COLUMNS]
        output += tl.sum(parts * some_weights[:, None], axis=0)
    output /= total
    output_row = head_start(output_ptr, output_strides, (sequence,), head, query)
    pointers = output_row + columns.to(tl.int64) * output_strides[3]
    tl.store(pointers, output.to(output_ptr.dtype.element_ty), mask=columns < HEAD)
    if tl.program_id(1) == 0:
        tl.store(lse_ptr + place, tl.where(sees_nothing, float("inf"), largest + tl.log2(total)))


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Each program takes BLOCK_KEYS keys at a time. `described`: TMA loads them, if it can walk the tensors."""

    BLOCK_KEYS: int = 64
    described: bool = False
    programs_per_multiprocessor: int = 2


ONE_ROW = DecodeConfig(num_stages=3, BLOCK_KEYS=32, programs_per_multiprocessor=4)
"""For the kernel of `decode_one_row.py`. One split of the keys and 4 of them, in µs on an H200: 128 tiles, d64 with
holes 17.8 and 15.3, d40 with holes 42.1 and 26.0; 504 tiles, d40 97.1 and 103.4; 360 tiles, d72 116.0 and 126.0."""


def decode_config(problem: Problem) -> DecodeConfig:
    """Return the default configuration.

    By TMA, in µs on an H200 (by pointers with 64 keys; cuDNN): b1 h48 on 8, 16,384 keys, d128: 23.1 (24.4; 23.7), b15
    h12 on 2, 8,192 keys, d96: 31.0 (32.6; 30.2), b22 h12, 4,096 keys, d96: 100.5 (109; 104), b8 h16 on 8, 11,777 keys,
    d64: 51.8 (52.0; 50.0), b128 h8, 512 keys, d64: 35.6 (39.2; 35.5).

    Rows of no multiple of 32 bytes are slow by TMA. Up to 48 elements pointers are faster: b63 h8, 4,101 keys, d40:
    104 µs, by TMA 137. b4 h40 on 8, 149 keys, d40: 6.1, 6.3. Longer rows stay with TMA: b2 h8, 9,000 keys, d56: 15.7,
    by pointers 18.6. b29 h16 on 8, 4,095 keys, d72: 94.4, by pointers 99.4, with the best number of splits 91.1.
    """
    halves = problem.q.element_bytes == 2
    rows = problem.queries * problem.group
    large = rows > 2 * SMALLEST_BLOCK and problem.head_block > 128
    warps = 8 if large and problem.mask is not None else 4  # four spill
    if not halves or not problem.describable():
        keys = 64 if halves and problem.head_block <= 128 else 32
        return DecodeConfig(num_warps=warps, num_stages=2, BLOCK_KEYS=keys)
    described = problem.head_size % 16 == 0 or problem.head_size > 48 or rows > 2 * SMALLEST_BLOCK
    if not problem.is_plain:  # bias, mask, soft cap and dropout take registers
        light = problem.only_adds_to_scores and problem.head_block <= 128
        keys = 64 if light and rows <= (SMALLEST_BLOCK if problem.bias is not None else 2 * SMALLEST_BLOCK) else 32
        # With three stages masked parts of 128 columns spill on Triton 3.9 where the keys are split.
        splits = problem.sequences * problem.key_heads < problem.plan.multiprocessors
        spills = problem.mask is not None and problem.head_block == 128 and keys == 64 and splits
        return DecodeConfig(num_warps=warps, num_stages=2 if spills else 3, BLOCK_KEYS=keys, described=described)
    if not described:
        return DecodeConfig(num_stages=3, programs_per_multiprocessor=4)
    if rows > 2 * SMALLEST_BLOCK or problem.head_block > 128:
        keys = 32 if rows > SMALLEST_BLOCK and problem.head_block > 128 else 64
        return DecodeConfig(num_warps=8 if rows > FEW_ROWS else 4, num_stages=3, BLOCK_KEYS=keys, described=True)
    keys = min(max(bucket(problem.keys), 32), 128)
    per_multiprocessor = 4 if problem.head_block <= 64 else 2
    return DecodeConfig(
        num_stages=2, BLOCK_KEYS=keys, described=True, programs_per_multiprocessor=per_multiprocessor
    )  # fmt: skip


def plan_decode(problem: Problem) -> tuple[Operand, Operand]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    plan = problem.plan
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    one_row = suits_one_row(problem)
    default, name = (ONE_ROW, "decode one row") if one_row else (decode_config(problem), "decode")
    config = plan.choose(default, name, problem.head_block, bucket(problem.keys), problem.q.dtype)
    tiles = problem.sequences * problem.key_heads
    splits = splits_of(problem.keys, tiles, plan.multiprocessors, config, one_row)
    keys_per_split = triton.cdiv(triton.cdiv(problem.keys, splits), config.BLOCK_KEYS) * config.BLOCK_KEYS
    splits = triton.cdiv(problem.keys, keys_per_split)
    tiles_of, walk = problem.tiles({"k": config.BLOCK_KEYS, "v": config.BLOCK_KEYS}, config.described)
    found, found_lse = output, lse
    if splits > 1:
        found = plan.empty((*lse.shape, splits, problem.head_size), problem.statistics_dtype)
        found_lse = plan.empty((*lse.shape, splits), problem.statistics_dtype)
    arguments = {
        **problem.arguments(), **tiles_of, "q_ptr": problem.q, "q_strides": problem.strides(problem.q),
        "output_ptr": found, "output_strides": problem.strides(output), "lse_ptr": found_lse, "n_splits": splits,
        "keys_per_split": keys_per_split, "SPLIT": splits > 1, "WALK": walk,
    }  # fmt: skip
    if one_row:
        names = attention_decode_row_kernel.arg_names
        known = {name: value for name, value in arguments.items() if name in names}
        plan.launch(attention_decode_row_kernel, (tiles * splits,), config, **known, STAGES=config.num_stages)
    else:
        plan.launch(
            attention_decode_kernel, (tiles * splits,), config, **arguments, bias_ptr=problem.bias,
            ROWS=max(bucket(problem.queries * problem.group), SMALLEST_BLOCK), PRECISION=problem.precision,
        )  # fmt: skip
    if splits > 1:
        columns = min(problem.head_block, 64)
        plan.launch(
            attention_combine_kernel,
            (tiles * problem.group * problem.queries, triton.cdiv(problem.head_size, columns)), Config(num_warps=4),
            partial_ptr=found, partial_lse_ptr=found_lse, output_ptr=output, lse_ptr=lse,
            output_strides=problem.strides(output), n_heads=problem.heads, query_rows=problem.queries, n_splits=splits,
            HEAD=problem.head_size, COLUMNS=columns, SPLITS=SPLITS_AT_ONCE, MOST=MOST_SPLITS,
        )  # fmt: skip
    return output, lse


FEWEST_KEYS, FEWEST_OF_MANY = 256, 1024
"""So few keys are not split: two blocks take less time than the second kernel, 2 µs on an H200. FEWEST_OF_MANY where
there is nearly a tile for each multiprocessor: 256 tiles of 600 keys, d64: 14.1, in 2 splits 15.9."""


def splits_of(keys: int, tiles: int, multiprocessors: int, config: DecodeConfig, one_row: bool = False) -> int:
    """Return into how many splits the keys are divided, so that the programs fill the GPU.

    Half of the programs that are wanted load as fast as all, without a second kernel, unless they have one row. In µs
    on an H200: 128 tiles of 4,096 keys, d64: 52.3, in 4 splits 36.5; 108 tiles of 8,192 keys, d128: 129, in 2 splits
    111; 160 tiles of 4,096 keys, d128: 82.4, in 2 splits 83.9.
    """
    fewest = FEWEST_OF_MANY if 5 * tiles >= 4 * multiprocessors and not one_row else FEWEST_KEYS
    if keys <= fewest or (not one_row and 2 * tiles >= config.programs_per_multiprocessor * multiprocessors):
        return 1
    wanted = multiprocessors * config.programs_per_multiprocessor // max(tiles, 1)
    return int(max(min(wanted, triton.cdiv(keys, config.BLOCK_KEYS), MOST_SPLITS), 1))


class Decode:
    """Few queries: the keys are split over programs."""

    def takes(self, problem: Problem) -> bool:
        """Return whether the queries of all heads that share keys fit into one tile."""
        is_dense = not problem.packed and problem.per_member is None
        light = problem.is_plain and problem.q.element_bytes == 2 and problem.head_block <= 128
        return is_dense and 0 < problem.queries * problem.group <= (MOST_ROWS if light else FEW_ROWS)

    def suits(self, problem: Problem) -> bool:
        """Return whether reading the keys dominates: there are many more keys than queries.

        A tile of many rows takes as long as in the other kernels, but its keys are split. 71 heads on one, 5,327 keys,
        d80: 9.9 µs on an H200, the portable kernel 59.
        """
        few_tiles = problem.sequences * problem.key_heads * 2 <= problem.plan.multiprocessors
        few_rows = problem.queries * problem.group <= FEW_ROWS
        return problem.queries * 4 <= problem.keys and (few_rows or few_tiles)

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_decode(problem)
