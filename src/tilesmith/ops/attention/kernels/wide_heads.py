"""Forward and backward for heads of more than 128 elements, in half precision, on GPUs with TMA.

A tile must have a power of two of columns, so `forward.py` and `backward.py` compute heads of 160 as heads of 256. Here
a head has two tiles: its first 128 columns, and the rest in 32, 64 or 128. A product over the columns of a head is the
sum of two products, and a product with the columns of a head is a pair. Otherwise the forward is that of `forward.py`.

Sums of 256 columns take half of the registers. So the backward has three kernels, and each keeps one sum: dq, dk or dv.
That is eight products where `backward.py` has seven, but with larger tiles. On an H200, b15 h32 s1024 d160 causal takes
2.1 ms, and 8.9 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, scored, weighed
from tilesmith.ops.attention.device.tiles import (
    DELTA,
    LSE,
    NOT_SPECIALISED,
    Statistics,
    block_of_program,
    is_seen,
    keys_seen,
    load_statistics,
    queries_that_see,
    query_place,
    store_statistics,
)
from tilesmith.ops.attention.kernels.forward import softmax_step
from tilesmith.ops.attention.kernels.group_parts import number_of_parts, plan_sum_of_parts, with_parts
from tilesmith.ops.attention.problem import Gradients, Problem, Tiles
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand

FIRST = tl.constexpr(128)
"""The columns of the first tile of a head."""


@triton.jit
def load_head(first, rest, sequence, head, start):
    """Load rows of a head from `start` on, as two tiles. There are zeros past the last row and the last column."""
    one = first.load([sequence, head, start, 0]).reshape(first.block_shape[2], first.block_shape[3])
    two = rest.load([sequence, head, start, FIRST]).reshape(rest.block_shape[2], rest.block_shape[3])
    return one, two  # [rows, FIRST], [rows, REST]


@triton.jit
def store_head(first, rest, sequence, head, start, one, two):
    """Store rows of a head from `start` on: its two tiles, but nothing past the last row or column."""
    first.store([sequence, head, start, 0], one.to(first.dtype).reshape(first.block_shape))
    rest.store([sequence, head, start, FIRST], two.to(rest.dtype).reshape(rest.block_shape))


@triton.jit
def over_columns(a, b):
    """Return a · bᵀ of rows of heads, [rows of a, rows of b]."""
    return tl.dot(a[1], tl.trans(b[1]), tl.dot(a[0], tl.trans(b[0])))


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_wide_forward_kernel(
    q_first, q_rest, k_first, k_rest, v_first, v_rest, output_first, output_rest, lse_ptr,
    n_heads, group, query_rows, key_rows, left, right, scale, softcap,
    REST: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the output and lse of a block of queries of one head."""
    sequence, head, start = block_of_program(None, 0, n_heads, query_rows, BLOCK_QUERIES, True)
    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, None, None)
    q = load_head(q_first, q_rest, sequence, head, start)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    largest = tl.full([BLOCK_QUERIES], float("-inf"), tl.float32)  # [BLOCK_QUERIES]
    total = tl.zeros([BLOCK_QUERIES], tl.float32)  # [BLOCK_QUERIES]
    one = tl.zeros([BLOCK_QUERIES, FIRST], tl.float32)  # [BLOCK_QUERIES, FIRST]
    two = tl.zeros([BLOCK_QUERIES, REST], tl.float32)  # [BLOCK_QUERIES, REST]
    edges = keys_seen(start, query_rows, key_rows, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    for part in tl.static_range(3):
        for key in tl.range(edges[part], edges[part + 1], BLOCK_KEYS):
            k = load_head(k_first, k_rest, sequence, head // group, key)
            tile = ScoreTile((sequence,), head, start, key, rows[:, None], columns[None, :])
            scores, factor, _ = scored(over_columns(q, k), tile, scoring, False, False)  # [queries, keys]
            if part != 1:
                seen = is_seen(start + tile.rows, key + tile.columns, query_rows, key_rows, left, right)
                scores = tl.where(seen, scores, float("-inf"))
            weights, shrink, largest, total = softmax_step(scores, factor, largest, total, part != 1)
            v = load_head(v_first, v_rest, sequence, head // group, key)
            weights = weights.to(v[0].dtype)
            one = tl.dot(weights, v[0], one * shrink[:, None])
            two = tl.dot(weights, v[1], two * shrink[:, None])

    sees_nothing = total == 0.0
    share = (1 / tl.where(sees_nothing, 1.0, total))[:, None]
    lse = tl.where(sees_nothing, float("inf"), largest + tl.log2(total))  # [BLOCK_QUERIES], see forward.py
    store_head(output_first, output_rest, sequence, head, start, one * share, two * share)
    lse_ptr += query_place(None, sequence, head, n_heads, query_rows, 0)
    tl.store(lse_ptr + start + rows, lse, mask=start + rows < query_rows)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_wide_dq_kernel(
    q_first, q_rest, k_first, k_rest, v_first, v_rest, output_first, output_rest, doutput_first, doutput_rest,
    dq_first, dq_rest, lse_ptr, statistics_ptr, n_heads, group, query_rows, key_rows, left, right, scale, softcap,
    REST: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dq and δ of a block of queries."""
    sequence, head, start = block_of_program(None, 0, n_heads, query_rows, BLOCK_QUERIES, True)
    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, None, None)
    statistics = Statistics(statistics_ptr, None, n_heads, query_rows, 0, query_rows)
    q = load_head(q_first, q_rest, sequence, head, start)
    doutput = load_head(doutput_first, doutput_rest, sequence, head, start)
    output = load_head(output_first, output_rest, sequence, head, start)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    delta = tl.sum(output[0].to(tl.float32) * doutput[0].to(tl.float32), axis=1)  # [BLOCK_QUERIES]
    delta += tl.sum(output[1].to(tl.float32) * doutput[1].to(tl.float32), axis=1)
    lse_ptr += query_place(None, sequence, head, n_heads, query_rows, 0)
    lse = tl.load(lse_ptr + start + rows, mask=start + rows < query_rows, other=float("inf"))  # [BLOCK_QUERIES]
    store_statistics(statistics, sequence, head, start, lse, delta, BLOCK_QUERIES)
    one = tl.zeros([BLOCK_QUERIES, FIRST], tl.float32)  # [BLOCK_QUERIES, FIRST]
    two = tl.zeros([BLOCK_QUERIES, REST], tl.float32)  # [BLOCK_QUERIES, REST]
    edges = keys_seen(start, query_rows, key_rows, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    for part in tl.static_range(3):
        for key in tl.range(edges[part], edges[part + 1], BLOCK_KEYS):
            k = load_head(k_first, k_rest, sequence, head // group, key)
            v = load_head(v_first, v_rest, sequence, head // group, key)
            tile = ScoreTile((sequence,), head, start, key, rows[:, None], columns[None, :])
            weights, slope = weighed(
                over_columns(q, k), tile, scoring, lse[:, None], None, False, False, part != 1
            )  # [BLOCK_QUERIES, BLOCK_KEYS]
            dscores = weights * (over_columns(doutput, v) - delta[:, None])
            if softcap is not None:
                dscores *= slope
            dscores = dscores.to(k[0].dtype)
            one = tl.dot(dscores, k[0], one)
            two = tl.dot(dscores, k[1], two)
    store_head(dq_first, dq_rest, sequence, head, start, one * scale, two * scale)


@triton.jit(do_not_specialize=(*NOT_SPECIALISED, "n_parts"))
def attention_wide_key_gradient_kernel(
    q_first, q_rest, k_first, k_rest, v_first, v_rest, doutput_first, doutput_rest, statistics_ptr, gradient_first,
    gradient_rest, n_parts, n_heads, group, query_rows, key_rows, left, right, scale, softcap,
    REST: tl.constexpr, OF_VALUES: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dk of a block of keys; OF_VALUES: dv. `n_parts` as in `attention_dkdv_kernel`."""
    sequence, key_head, start = block_of_program(None, 0, n_heads // group, key_rows, BLOCK_KEYS, False)
    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, None, None)
    statistics = Statistics(statistics_ptr, None, n_heads, query_rows, 0, query_rows)
    k = load_head(k_first, k_rest, sequence, key_head // n_parts, start)
    if not OF_VALUES:
        v = load_head(v_first, v_rest, sequence, key_head // n_parts, start)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    one = tl.zeros([BLOCK_KEYS, FIRST], tl.float32)  # [BLOCK_KEYS, FIRST]
    two = tl.zeros([BLOCK_KEYS, REST], tl.float32)  # [BLOCK_KEYS, REST]
    edges = queries_that_see(start, query_rows, key_rows, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    for part in tl.static_range(3):
        blocks = tl.cdiv(edges[part + 1] - edges[part], BLOCK_QUERIES)
        for index in tl.range(0, blocks * group):
            head = key_head * group + index // blocks
            query = edges[part] + index % blocks * BLOCK_QUERIES
            q = load_head(q_first, q_rest, sequence, head, query)
            doutput = load_head(doutput_first, doutput_rest, sequence, head, query)
            lse = load_statistics(statistics, sequence, head, query, LSE, BLOCK_QUERIES, "described", True)
            tile = ScoreTile((sequence,), head, query, start, rows[None, :], columns[:, None])
            weights, slope = weighed(
                over_columns(k, q), tile, scoring, lse[None, :], None, False, False, part != 1
            )  # [BLOCK_KEYS, BLOCK_QUERIES]
            if OF_VALUES:
                weights = weights.to(doutput[0].dtype)
                one = tl.dot(weights, doutput[0], one)
                two = tl.dot(weights, doutput[1], two)
            else:
                delta = load_statistics(statistics, sequence, head, query, DELTA, BLOCK_QUERIES, "described", True)
                dscores = weights * (over_columns(v, doutput) - delta[None, :])
                if softcap is not None:
                    dscores *= slope
                dscores = dscores.to(q[0].dtype)
                one = tl.dot(dscores, q[0], one)
                two = tl.dot(dscores, q[1], two)
    share = 1.0 if OF_VALUES else scale
    store_head(gradient_first, gradient_rest, sequence, key_head, start, one * share, two * share)


@dataclass(frozen=True)
class WideConfig(Config):
    """Tiles of BLOCK_QUERIES × BLOCK_KEYS. The statistics of 16 queries are smaller than TMA's alignment: 32 at least.

    `least_programs`: as in `backward_tiles.py`.
    """

    BLOCK_QUERIES: int = 128
    BLOCK_KEYS: int = 64
    least_programs: int = 256


ONE_BLOCK = 64
LONG, MANY_PROGRAMS = 1024, 1024
"""From so many queries on, groups of heads are split into so many programs. b2 s4096 d160 with 32 heads on 4 key heads
on an H200: dk and dv take 2.1 ms, and 2.8 with 256 programs."""
FEW_QUERIES, FEW_PROGRAMS = 128, 100
"""Up to so many queries so few programs will do: b7 s128 d192, 40 heads on 8: 111 µs with 560, and 99.5 with 112."""

# The fastest tiles on an H200 that do not spill, by the columns of the second tile of a head. Measured were one tile of
# the forward and several of the backward (`benchmarks/tuning/wide_heads-h200.json`). Columns of `Tiles`: queries, keys,
# warps, stages. dk of heads of 256 spills up to 212 bytes before Triton 3.9. Even so it takes 531 µs for b8 h16 s1024
# with Triton 3.6, and 996 with the 64 × 64 that did not spill.
_FORWARD = {32: Tiles(128, 64, 8, 2), 64: Tiles(128, 64, 8, 2)}
_DQ = {32: Tiles(128, 64, 8, 3), 64: Tiles(128, 64, 8, 2), 128: Tiles(128, 32, 8, 2)}
_DK = {32: Tiles(64, 128, 8, 3), 64: Tiles(32, 64, 4, 2), 128: Tiles(32, 128, 8, 3)}
_DV = {32: Tiles(64, 64, 4, 2), 64: Tiles(32, 64, 4, 3), 128: Tiles(64, 128, 8, 2)}
# Of short sequences, heads of up to 192 elements. Backward in µs, with the tiles above and with these: b53 h8 s128 d160
# causal 137 and 120, b7 s128 d192 causal, 40 heads on 8: 111 and 103, b1 s511 d192, 71 heads on one: 245 and 253.
_SHORT, _SHORTISH = 256, 512
_SHORT_DQ = {**_DQ, 32: Tiles(64, 32, 4, 2), 64: Tiles(64, 32, 4, 2)}
_SHORT_DK = {**_DK, 32: Tiles(32, 64, 4, 2)}
_SHORT_DV = {**_DV, 32: Tiles(32, 64, 4, 2)}


def _is_short(problem: Problem) -> bool:
    """Return whether small tiles are faster: few tokens, or too few blocks of 128 queries to fill the GPU twice.

    The blocks of b1 h48 s368 d160 are 144: its dq takes 4 µs less in small tiles on an H200, and its dk 5 µs less.
    """
    length = max(problem.queries, problem.keys)
    blocks = problem.heads * problem.blocks(problem.queries, 128)
    return length <= _SHORT or (length < _SHORTISH and blocks < 2 * problem.plan.multiprocessors)


def _config(tiles: Mapping[int, Tiles], problem: Problem) -> WideConfig:
    queries, keys, warps, stages = tiles[_rest(problem)]
    few = FEW_PROGRAMS if problem.queries <= FEW_QUERIES else WideConfig.least_programs
    least = MANY_PROGRAMS if problem.queries >= LONG else few
    return WideConfig(
        num_warps=warps, num_stages=stages, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, least_programs=least
    )  # fmt: skip


def _key_config(tiles: Mapping[int, Tiles], problem: Problem) -> WideConfig:
    """Return the tiles of dk or dv. With Triton 3.6 and a window 64 queries spill, with a soft cap those of dk too."""
    config = _config(tiles, problem)
    has_room = problem.left == UNBOUNDED and (not problem.softcap or _rest(problem) == int(FIRST.value))
    return config if has_room else replace(config, BLOCK_QUERIES=min(config.BLOCK_QUERIES, 32))


def _rest(problem: Problem) -> int:
    """Return the columns of a head's second tile."""
    beyond = problem.head_size - int(FIRST.value)
    return next(columns for columns in (32, 64, 128) if beyond <= columns)


def _arguments(problem: Problem, rows: int, keys: int, **others: tuple[Operand, int]) -> dict[str, object]:
    """Return the arguments that all kernels take. A tensor has two descriptors, for its first columns and the rest."""
    tensors = {"q": (problem.q, rows), "k": (problem.k, keys), "v": (problem.v, keys), **others}
    known = problem.arguments()
    names = ("n_heads", "group", "query_rows", "key_rows", "left", "right", "scale", "softcap")
    found = {name: known[name] for name in names} | {"REST": _rest(problem)}
    for name, (tensor, count) in tensors.items():
        found[f"{name}_first"] = tensor.descriptor((1, 1, count, int(FIRST.value)))
        found[f"{name}_rest"] = tensor.descriptor((1, 1, count, _rest(problem)))
    return found


def takes_wide_heads(problem: Problem, *others: Operand) -> bool:
    """Return whether heads have 129 to 256 elements of two bytes that TMA can walk, and scores add and drop nothing."""
    dense = not problem.packed and problem.per_member is None and problem.q.element_bytes == 2
    scores = problem.bias is None and problem.mask is None and problem.seed is None
    return dense and scores and problem.head_block == 2 * int(FIRST.value) and problem.describable(*others)


class WideHeadsForward:
    """Heads of 129 to 256 elements in half precision, without bias, mask and dropout, on GPUs with TMA."""

    def takes(self, problem: Problem) -> bool:
        return takes_wide_heads(problem)

    def suits(self, problem: Problem) -> bool:
        """Return whether a head is narrower than a block of 256: two tiles of 128 take 2 to 3 % longer than that."""
        return _rest(problem) < int(FIRST.value)

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        """Plan the output, and log₂ Σ 2^score of each query."""
        plan = problem.plan
        output = plan.empty_like(problem.q)
        lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
        config = plan.choose(_config(_FORWARD, problem), "wide", *problem.sizes)
        rows = config.BLOCK_QUERIES
        plan.launch(
            attention_wide_forward_kernel, (problem.heads * problem.blocks(problem.queries, rows),), config,
            **_arguments(problem, rows, config.BLOCK_KEYS, output=(output, rows)), lse_ptr=lse,
        )  # fmt: skip
        return output, lse


class WideHeadsBackward:
    """The gradients of `WideHeadsForward`."""

    def takes(self, task: Gradients) -> bool:
        return takes_wide_heads(task.problem, task.output, task.doutput, task.dq, task.dk, task.dv)

    def suits(self, task: Gradients) -> bool:
        """Return whether sequences are longer than one block. 17 queries and keys take 65 µs here, 32 in one kernel."""
        return max(task.problem.queries, task.problem.keys) > ONE_BLOCK

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        """Plan dq, dk and dv."""
        plan, problem = task.problem.plan, task.problem
        dq, dk, dv = (_SHORT_DQ, _SHORT_DK, _SHORT_DV) if _is_short(problem) else (_DQ, _DK, _DV)
        statistics = plan.empty(problem.statistics_shape, problem.statistics_dtype)
        config = plan.choose(_config(dq, problem), "wide dq", *problem.sizes)
        rows = config.BLOCK_QUERIES
        plan.launch(
            attention_wide_dq_kernel, (problem.heads * problem.blocks(problem.queries, rows),), config,
            **_arguments(
                problem, rows, config.BLOCK_KEYS, output=(task.output, rows), doutput=(task.doutput, rows),
                dq=(task.dq, rows),
            ), lse_ptr=task.lse, statistics_ptr=statistics,
        )  # fmt: skip
        dk_config = plan.choose(_key_config(dk, problem), "wide dk", *problem.sizes)
        dv_config = plan.choose(_key_config(dv, problem), "wide dv", *problem.sizes)
        programs = problem.key_heads * problem.blocks(problem.keys, dk_config.BLOCK_KEYS)
        parts = number_of_parts(problem, programs, dk_config.least_programs)
        parted = with_parts(task, parts)
        for config, gradient in ((dk_config, parted.dk), (dv_config, parted.dv)):
            rows, keys = config.BLOCK_QUERIES, config.BLOCK_KEYS
            known = _arguments(problem, rows, keys, doutput=(task.doutput, rows), gradient=(gradient, keys))
            plan.launch(
                attention_wide_key_gradient_kernel, (parts * problem.key_heads * problem.blocks(problem.keys, keys),),
                config, **{**known, "group": problem.group // parts}, n_parts=parts,
                statistics_ptr=statistics.descriptor((1, 1, 1, rows)), OF_VALUES=gradient is parted.dv,
            )  # fmt: skip
        plan_sum_of_parts(task, parted, parts)
        return task.dq, task.dk, task.dv
