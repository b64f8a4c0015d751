"""The portable forward: a program takes a block of queries, walks along the keys, and computes softmax online.

The weights of each block of keys are relative to the largest score so far. When a larger score turns up, the kernel
scales the earlier sums down. So only one tile of scores exists at a time. The backward needs one number per query,
log₂ Σ 2^score.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, scored
from tilesmith.ops.attention.device.split_operands import (
    StoredParts,
    key_and_value_rows,
    load_operand,
    multiplied,
    only_rows,
    operand_like,
    operand_rows,
    transposed,
)
from tilesmith.ops.attention.device.tiles import (
    NOT_SPECIALISED,
    UNMASKED,
    block_of_program,
    dropout_stream,
    head_rows,
    is_attended,
    is_kept,
    is_seen,
    keys_seen,
    parts_of_keys,
    place_of,
    query_place,
    rows_of_sequence,
    store_tile,
)  # fmt: skip
from tilesmith.ops.attention.problem import Problem, Tiles
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the output and lse of a block of queries of one head."""
    sequence, head, start = block_of_program(query_starts_ptr, n_sequences, n_heads, query_rows, BLOCK_QUERIES, True)
    first_query, n_queries = rows_of_sequence(query_starts_ptr, sequence, query_rows)
    if start >= n_queries:
        return
    first_key, n_keys = rows_of_sequence(key_starts_ptr, sequence, key_rows)
    place = place_of(sequence, per_member)
    stream = dropout_stream(seed_ptr, sequence * n_heads + head)
    q_rows = operand_rows(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3
    )
    k_rows, v_rows = key_and_value_rows(
        (k_ptr, k_strides), (v_ptr, v_strides), n_heads // group, first_key, n_keys,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3,
    )  # fmt: skip
    scoring = Scoring(n_queries, n_keys, left, right, scale, softcap, bias_ptr, bias_strides)

    q = load_operand(q_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
    rows = tl.arange(0, BLOCK_QUERIES)
    keys = tl.arange(0, BLOCK_KEYS)
    largest = tl.full([BLOCK_QUERIES], float("-inf"), COMPUTE)  # [BLOCK_QUERIES]
    total = tl.zeros([BLOCK_QUERIES], COMPUTE)  # [BLOCK_QUERIES]
    output = tl.zeros([BLOCK_QUERIES, BLOCK_HEAD], COMPUTE)  # [BLOCK_QUERIES, BLOCK_HEAD]

    edges = keys_seen(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    begins, ends = parts_of_keys(edges, mask_ptr, mask_strides, place, n_keys, BLOCK_KEYS)
    for part in tl.static_range(3 if mask_ptr is None else 4):
        for key in tl.range(begins[part], ends[part], BLOCK_KEYS):
            tile = ScoreTile(place, head, start, key, rows[:, None], keys[None, :])
            k = load_operand(
                k_rows, place, head // group, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, part % 2 == 0
            )  # fmt: skip
            scores, factor = visible_scores(
                q, k, tile, scoring, None if part == UNMASKED else mask_ptr, mask_strides,
                COMPUTE, PRECISION, BIAS_DESCRIBED, part % 2 == 0,
            )  # fmt: skip
            weights, shrink, largest, total = softmax_step(
                scores, factor, largest, total, part != UNMASKED or bias_ptr is not None
            )
            if seed_ptr is not None:
                kept = is_kept(stream, tile.query + tile.rows, tile.key + tile.columns, drop_below)
                weights = tl.where(kept, weights, 0.0)
            v = load_operand(
                v_rows, place, head // group, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, part % 2 == 0
            )  # fmt: skip
            if mask_ptr is not None and part != UNMASKED:
                v = only_rows(v, is_attended(mask_ptr, mask_strides, place, key, keys[:, None], n_keys))
            output *= shrink[:, None]
            output = multiplied(operand_like(weights, v), v, output, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_HEAD]

    sees_nothing = total == 0.0
    output *= (keep_scale / tl.where(sees_nothing, 1.0, total))[:, None]
    # Infinity where a query sees no key: the backward's weights, 2^(score − lse), are then zero.
    lse = tl.where(sees_nothing, float("inf"), largest + tl.log2(total))  # [BLOCK_QUERIES]
    output_rows = head_rows(
        output_ptr, output_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK
    )
    store_tile(output_rows, place, head, start, output, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)
    lse_ptr += query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
    tl.store(lse_ptr + start + rows, lse, mask=start + rows < n_queries)


@triton.jit
def visible_scores(
    q, k, tile, scoring, mask_ptr, mask_strides,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Return the scores [queries, keys] of a tile as `scored` does, with −∞ where a query does not see a key.

    CHECKED where not every query sees every key.
    """
    products = multiplied(q, transposed(k), None, COMPUTE, PRECISION)  # [queries, keys]
    scores, factor, _ = scored(products, tile, scoring, BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32)
    if CHECKED:
        queries, keys = tile.query + tile.rows, tile.key + tile.columns
        seen = is_seen(queries, keys, scoring.n_queries, scoring.n_keys, scoring.left, scoring.right)
        scores = tl.where(seen, scores, float("-inf"))
    if mask_ptr is not None:
        attended = is_attended(mask_ptr, mask_strides, tile.place, tile.key, tile.columns, scoring.n_keys)
        scores = tl.where(attended, scores, float("-inf"))
    return scores, factor


@triton.jit
def softmax_step(scores, factor, largest, total, MAY_SEE_NOTHING: tl.constexpr):
    """Return a tile's weights, the factor for earlier sums, and each query's new largest score and sum of weights."""
    new_largest = tl.maximum(largest, tl.max(scores, axis=1) * factor)
    subtracted = new_largest
    if MAY_SEE_NOTHING:  # −∞ − −∞ is NaN
        subtracted = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores * factor - subtracted[:, None])  # [queries, keys]
    shrink = tl.exp2(largest - subtracted)
    return weights, shrink, new_largest, total * shrink + tl.sum(weights, axis=1)


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes BLOCK_QUERIES queries of one head, and BLOCK_KEYS keys at a time.

    `described`: TMA loads tiles, if it can walk the tensors. `bf16x3`: where the parts of exact single precision come
    from, see `split_operands.py`.
    """

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    bf16x3: str = ""


# By the bytes of an element, whether TMA loads tiles, and the block that covers a head. Elements of two bytes by TMA
# have the fastest tiles on an H200 that do not spill with any supported release of Triton: two programs of four warps
# share a multiprocessor, and one multiplies while the other computes exponentials. Of 128 × 128 with eight warps only
# one fits: b4 h32 s4096 d128 takes 2.4 ms, not 2.1. Columns of `Tiles`: queries, keys, warps, stages.
_FULL_PRECISION = {64: Tiles(64, 32, 4, 2), 128: Tiles(32, 32, 8, 1), 256: Tiles(16, 16, 8, 1)}
_TILES = {
    (2, True): {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 4, 3), 256: Tiles(128, 64, 8, 2)},
    (2, False): {64: Tiles(64, 64, 4, 2), 128: Tiles(64, 64, 8, 2), 256: Tiles(64, 32, 8, 1)},
    (4, True): _FULL_PRECISION,
    (4, False): _FULL_PRECISION,
}


def forward_config(problem: Problem, described: bool, split: bool) -> ForwardConfig:
    """Return the default tiles. `split`: this kernel, not the compiler, splits exact single precision."""
    if split:
        return _split_config(problem)
    queries, keys, warps, stages = _TILES[min(problem.q.element_bytes, 4), described][max(problem.head_block, 64)]
    if problem.has_light_scores and described:
        # 385 µs for a triangle of 512 residues on an H200, 407 in two stages, 433 with half the queries, 437 with twice
        # the keys and eight warps.
        queries, keys, warps, stages = 128, 32, 4, 3
        if problem.gathers_bias:
            queries = 64  # the addresses of 128 queries fill the registers where rows are no multiple of 16 bytes
    elif not problem.is_plain:  # bias, mask, soft cap and dropout take registers
        queries, keys, warps = min(queries, 64), min(keys, 32), 4 if problem.q.element_bytes == 2 else 8
        stages = min(stages, 2)
        if problem.mask is not None and problem.q.element_bytes == 4 and not described:
            stages = 1  # two spill on Ampere
        if problem.mask is not None and not problem.only_adds_to_scores:
            warps = 8  # four spill with all of these
    elif problem.queries <= 256 and problem.head_block <= 64:  # short sequences do not fill three stages
        queries, keys, warps, stages = min(queries, 64), min(keys, 64), 4, 2
    elif described and problem.head_block <= 64 and problem.right == UNBOUNDED and problem.q.element_bytes == 2:
        # 661 µs for b8 h32 s2048 d64, 697 with 64 keys. Under a causal mask, blocks of 64 compute fewer hidden scores.
        keys = 128
    return ForwardConfig(
        num_warps=warps, num_stages=stages, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, described=described
    )  # fmt: skip


def _split_config(problem: Problem) -> ForwardConfig:
    """Return the largest tiles of bf16 parts that do not spill with any supported release of Triton.

    b8 h8 s128 d64 takes 13.0 µs on an H200; from stored parts with 64 keys 9.9, and 3.2 to store them.
    """
    source = "on_load" if problem.visits_are_few else "stored"
    keys = 64 if problem.is_plain and (source == "stored" or problem.head_block <= 32) else 32
    stages = 1 if problem.gathers_bias else 2
    return ForwardConfig(num_warps=4, num_stages=stages, BLOCK_QUERIES=64, BLOCK_KEYS=keys, bf16x3=source)


def plan_portable_forward(problem: Problem) -> tuple[Operand, ...]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    plan = problem.plan
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    described = problem.describable()
    default = forward_config(problem, described, problem.gains_from_splitting(described))
    config = plan.choose(default, *problem.sizes)
    rows = {"q": config.BLOCK_QUERIES, "output": config.BLOCK_QUERIES, "k": config.BLOCK_KEYS, "v": config.BLOCK_KEYS}
    parts = StoredParts(plan, problem)
    tiles, walk = problem.tiles(rows, config.described, output=output, **parts.stored_for(config))
    plan.launch(
        attention_forward_kernel, (problem.heads * problem.blocks(problem.queries, config.BLOCK_QUERIES),), config,
        **problem.arguments(), **tiles, **problem.bias_tiles(config), lse_ptr=lse, WALK=walk,
        BF16X3=parts.source(config), PRECISION=problem.precision,
    )  # fmt: skip
    return output, lse


class PortableForward:
    """Every problem, on every GPU."""

    def takes(self, problem: Problem) -> bool:
        return True

    def suits(self, problem: Problem) -> bool:
        return True

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_portable_forward(problem)
