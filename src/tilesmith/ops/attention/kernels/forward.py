"""The forward: a block of queries walks along the keys, and softmax is worked out as it goes.

For each block of keys the weights are taken relative to the largest score seen so far. When a larger one turns up, what
was added so far is scaled down to match. So no more than one tile of scores exists at a time, and all that is left for
the backward is one number per query, log₂ Σ 2^score.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.bf16x3 import (
    Planes,
    load_planes,
    multiplied,
    planes_like,
    planes_of_sequence,
    turned,
)
from tilesmith.ops.attention.device.scores import scored
from tilesmith.ops.attention.device.tiles import (
    NOT_SPECIALISED,
    block_of_program,
    dropout_stream,
    is_attended,
    is_kept,
    is_seen,
    keys_seen,
    of_sequence,
    place_of,
    query_place,
    rows_of_sequence,
    store_tile,
)  # fmt: skip
from tilesmith.ops.attention.form import Form, always
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, PLANES: tl.constexpr, BIAS_DESCRIBED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    sequence, head, start = block_of_program(query_starts_ptr, n_sequences, n_heads, query_rows, BLOCK_QUERIES, True)
    first_query, n_queries = rows_of_sequence(query_starts_ptr, sequence, query_rows)
    if start >= n_queries:
        return
    first_key, n_keys = rows_of_sequence(key_starts_ptr, sequence, key_rows)
    place = place_of(sequence, per_member)
    stream = dropout_stream(seed_ptr, sequence * n_heads + head)
    q_ptr = planes_of_sequence(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    k_ptr = planes_of_sequence(
        k_ptr, k_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    v_ptr = planes_of_sequence(
        v_ptr, v_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )

    q = load_planes(
        q_ptr, q_strides, place, head, first_query, start, n_queries,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES, True,
    )  # fmt: skip
    rows = tl.arange(0, BLOCK_QUERIES)
    largest = tl.full([BLOCK_QUERIES], float("-inf"), COMPUTE)
    total = tl.zeros([BLOCK_QUERIES], COMPUTE)
    output = tl.zeros([BLOCK_QUERIES, BLOCK_HEAD], COMPUTE)

    edges = keys_seen(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    for part in tl.static_range(3):
        for key in tl.range(edges[part], edges[part + 1], BLOCK_KEYS):
            output, largest, total = attend(
                output, largest, total, q, place, head, head // group, start, rows[:, None], first_key, key,
                k_ptr, v_ptr, bias_ptr, mask_ptr, stream, k_strides, v_strides, bias_strides, mask_strides,
                n_queries, n_keys, left, right, scale, softcap, drop_below,
                HEAD, BLOCK_HEAD, PRECISION, WALK, PLANES, BIAS_DESCRIBED, BLOCK_KEYS, seed_ptr is not None, part != 1,
            )  # fmt: skip

    sees_nothing = total == 0.0
    output *= (keep_scale / tl.where(sees_nothing, 1.0, total))[:, None]
    # Infinity where there is nothing: the backward's weights, 2^(score − lse), are then zero as they should be.
    lse = tl.where(sees_nothing, float("inf"), largest + tl.log2(total))
    output_ptr = of_sequence(
        output_ptr, output_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK
    )
    store_tile(
        output_ptr, output_strides, place, head, first_query, start, n_queries, output,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK,
    )  # fmt: skip
    lse_ptr += query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
    tl.store(lse_ptr + start + rows, lse, mask=start + rows < n_queries)


@triton.jit
def attend(
    output, largest, total, q, place, head, key_head, query, rows, first_key, key,
    k_ptr, v_ptr, bias_ptr, mask_ptr, stream, k_strides, v_strides, bias_strides, mask_strides,
    n_queries, n_keys, left, right, scale, softcap, drop_below,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, PRECISION: tl.constexpr, WALK: tl.constexpr, PLANES: tl.constexpr,
    BIAS_DESCRIBED: tl.constexpr, BLOCK_KEYS: tl.constexpr, DROPOUT: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """One block of keys, for queries that `rows` count from `query` on. CHECKED where not all of them see all of it."""
    columns = tl.arange(0, BLOCK_KEYS)[None, :]
    k = load_planes(
        k_ptr, k_strides, place, key_head, first_key, key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, CHECKED
    )
    products = multiplied(q, turned(k), None, output.dtype, PRECISION)
    scores, factor, _ = scored(
        products, place, head, query, key, rows, columns, n_queries, n_keys, scale, softcap, bias_ptr, bias_strides,
        BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32,
    )  # fmt: skip
    if CHECKED:
        seen = is_seen(query + rows, key + columns, n_queries, n_keys, left, right)
        scores = tl.where(seen, scores, float("-inf"))
    if mask_ptr is not None:
        attended = is_attended(mask_ptr, mask_strides, place, key, columns, n_keys)
        scores = tl.where(attended, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1) * factor)
    subtracted = new_largest
    if CHECKED or mask_ptr is not None or bias_ptr is not None:  # −∞ − −∞ is no number: a row may see nothing yet
        subtracted = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores * factor - subtracted[:, None])
    shrink = tl.exp2(largest - subtracted)
    total = total * shrink + tl.sum(weights, axis=1)
    if DROPOUT:
        weights = tl.where(is_kept(stream, query + rows, key + columns, drop_below), weights, 0.0)
    v = load_planes(
        v_ptr, v_strides, place, key_head, first_key, key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, CHECKED
    )
    output *= shrink[:, None]
    output = multiplied(planes_like(weights, v), v, output, output.dtype, PRECISION)
    return output, new_largest, total


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes BLOCK_QUERIES queries of one head, and BLOCK_KEYS keys at a time.

    `described` where tiles are fetched by the copy engine, if it can walk the tensors. `planes`: of single precision,
    see `planes.py`.
    """

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    planes: str = ""


# By the bytes of an element, whether tiles are described, and the block that covers a head: queries, keys, warps and
# stages. For elements of two bytes that are described, the fastest of those on an H200 that do not spill with any
# supported release of Triton: two programs of four warps share a multiprocessor, one of which multiplies while the
# other is at its exponentials. Of 128 × 128 with eight warps only one fits: 2.4 ms for b4 h32 s4096 d128, not 2.1.
_TILES = {
    (2, True): {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (128, 64, 8, 2)},
    (2, False): {64: (64, 64, 4, 2), 128: (64, 64, 8, 2), 256: (64, 32, 8, 1)},
    (4, True): {64: (64, 32, 4, 2), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
    (4, False): {64: (64, 32, 4, 2), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
}


def forward_config(problem: Problem, described: bool, planes: bool) -> ForwardConfig:
    if planes:
        return _planes_config(problem)
    tiles = _TILES[min(problem.q.element_bytes, 4), described]
    queries, keys, warps, stages = tiles[max(problem.head_block, 64)]
    if problem.has_light_scores and described:
        # 76 µs for a triangle of 256 residues on an H200, 84 with half the queries, 92 with twice the keys.
        queries, keys, warps, stages = 128, 32, 4, 2
        if problem.gathers_bias:
            queries = 64  # the addresses of twice as many, where rows are no multiple of 16 bytes, fill the registers
    elif not problem.is_plain:  # what is done to scores takes registers
        queries, keys, warps = min(queries, 64), min(keys, 32), 4 if problem.q.element_bytes == 2 else 8
        stages = min(stages, 2)
    elif problem.queries <= 256 and problem.head_block <= 64:  # short sequences have no time for three stages
        queries, keys, warps, stages = min(queries, 64), min(keys, 64), 4, 2
    elif described and problem.head_block <= 64 and problem.right == UNBOUNDED and problem.q.element_bytes == 2:
        # 661 µs for b8 h32 s2048 d64, 697 with 64 keys; where later keys are not seen, 64 leave less to mask.
        keys = 128
    return ForwardConfig(
        num_warps=warps, num_stages=stages, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, described=described
    )  # fmt: skip


def _planes_config(problem: Problem) -> ForwardConfig:
    """The largest tiles that do not spill with any supported release of Triton.

    On an H200 for b8 h8 s128 d64: 13.0 µs; 9.9 from stored planes with 64 keys, and 3.2 to store them.
    """
    where = "here" if problem.visits_are_few else "stored"
    keys = 64 if problem.is_plain and (where == "stored" or problem.head_block <= 32) else 32
    stages = 1 if problem.gathers_bias else 2
    return ForwardConfig(num_warps=4, num_stages=stages, BLOCK_QUERIES=64, BLOCK_KEYS=keys, planes=where)


def plan_portable_forward(plan: Plan, problem: Problem) -> tuple[Operand, ...]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    described = problem.describable(plan)
    default = forward_config(problem, described, problem.gains_from_planes(plan, described))
    config = plan.choose(default, *problem.sizes)
    rows = {"q": config.BLOCK_QUERIES, "output": config.BLOCK_QUERIES, "k": config.BLOCK_KEYS, "v": config.BLOCK_KEYS}
    planes = Planes(plan, problem)
    tiles, walk = problem.tiles(rows, config.described, output=output, **planes.stored_for(config))
    plan.launch(
        attention_forward_kernel, (problem.heads * problem.blocks(problem.queries, config.BLOCK_QUERIES),), config,
        **problem.arguments(), **tiles, **problem.bias_tiles(config), lse_ptr=lse, WALK=walk,
        PLANES=planes.where(config), PRECISION=problem.precision(plan),
    )  # fmt: skip
    return output, lse


PORTABLE_FORWARD = Form("portable", takes=always, suits=always, plan=plan_portable_forward)
