"""The gradient of the bias: ds, summed over every sequence, head and query that shares an element of the bias.

A program owns a tile of the bias and walks through everything that shares it. So no two programs add to one element,
and no matrix larger than the bias exists. Where the bias has too few tiles to fill the GPU, several programs sum over
equal parts of what shares a tile, and a second kernel adds up their partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, weighed
from tilesmith.ops.attention.device.split_operands import StoredParts, load_operand, multiplied, transposed
from tilesmith.ops.attention.device.tiles import (
    DELTA,
    LSE,
    NOT_SPECIALISED,
    HeadRows,
    Statistics,
    dropout_stream,
    is_attended,
    is_kept,
    load_statistics,
    place_of,
)
from tilesmith.ops.attention.kernels.backward_tiles import source_of_parts
from tilesmith.ops.attention.problem import Gradients, Problem
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "n_repeats", "repeats_per_split", "split_size"])
def attention_dbias_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr,
    doutput_ptr, statistics_ptr, dbias_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, doutput_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    bias_heads, n_repeats, repeats_per_split, split_size,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, ONE_ROW: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of dbias, or of a partial sum of it: [partial sums, bias sequences, bias heads, bias rows, keys].

    ONE_ROW where all queries share the bias.
    """
    key_blocks = tl.cdiv(key_rows, BLOCK_KEYS)
    query_blocks = tl.cdiv(query_rows, BLOCK_QUERIES)
    blocks = 1 if ONE_ROW else query_blocks
    program = tl.program_id(0)
    first_key = program % key_blocks * BLOCK_KEYS
    first_query = program // key_blocks % blocks * BLOCK_QUERIES
    bias_head = program // key_blocks // blocks % bias_heads
    bias_sequence = program // key_blocks // blocks // bias_heads
    repeat = tl.program_id(1) * repeats_per_split
    last_repeat = tl.minimum(repeat + repeats_per_split, n_repeats)
    if not ONE_ROW:  # a tile that no query sees has no gradient
        shift = key_rows - query_rows
        if left is not None:
            last_repeat = tl.where(first_key + BLOCK_KEYS > first_query + shift - left, last_repeat, 0)
        last_repeat = tl.where(first_key < first_query + BLOCK_QUERIES + shift + right, last_repeat, 0)
    q_rows = HeadRows(q_ptr, q_strides, 0, query_rows)
    doutput_rows = HeadRows(doutput_ptr, doutput_strides, 0, query_rows)
    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    v_rows = HeadRows(v_ptr, v_strides, 0, key_rows)
    scoring = Scoring(query_rows, key_rows, left, right, scale, softcap, bias_ptr, bias_strides)
    statistics = Statistics(statistics_ptr, query_starts_ptr, n_heads, query_rows, 0, query_rows)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    dbias = tl.zeros([BLOCK_QUERIES, BLOCK_KEYS], COMPUTE)  # [BLOCK_QUERIES, BLOCK_KEYS]
    for index in tl.range(repeat, last_repeat):
        start = first_query
        sharer = index
        if ONE_ROW:
            start = index % query_blocks * BLOCK_QUERIES
            sharer = index // query_blocks
        head = bias_head + sharer % (n_heads // bias_heads)
        sequence = bias_sequence + sharer // (n_heads // bias_heads)
        if per_member is not None:  # in a grid, sequences share a bias, heads do not
            sequence = bias_sequence * per_member + sharer
        # Not (bias_sequence, sharer): the compiler hoists what is constant over the loop, and then spills.
        place = place_of(sequence, per_member)
        q = load_operand(q_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
        k = load_operand(k_rows, place, head // group, first_key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
        lse = load_statistics(statistics, sequence, head, start, LSE, BLOCK_QUERIES, "near", True)
        delta = load_statistics(statistics, sequence, head, start, DELTA, BLOCK_QUERIES, "near", True)
        products = multiplied(q, transposed(k), None, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_KEYS]
        weights, _ = weighed(
            products, ScoreTile(place, head, start, first_key, rows[:, None], columns[None, :]), scoring,
            lse[:, None], None,
            BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32, True,
        )  # fmt: skip
        doutput = load_operand(doutput_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
        v = load_operand(v_rows, place, head // group, first_key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
        dweights = multiplied(doutput, transposed(v), None, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_KEYS]
        if seed_ptr is not None:
            stream = dropout_stream(seed_ptr, sequence * n_heads + head)
            kept = is_kept(stream, start + rows[:, None], first_key + columns[None, :], drop_below)
            dweights = tl.where(kept, dweights * keep_scale, 0.0)
        dscores = weights * (dweights - delta[:, None])
        if mask_ptr is not None:
            attended = is_attended(mask_ptr, mask_strides, place, first_key, columns[None, :], key_rows)
            dscores = tl.where(attended, dscores, 0.0)
        dbias += dscores

    dbias_ptr += tl.program_id(1).to(tl.int64) * split_size
    row = bias_sequence.to(tl.int64) * bias_heads + bias_head
    keys = first_key + columns
    if ONE_ROW:
        sums = tl.sum(dbias, axis=0).to(dbias_ptr.dtype.element_ty)
        tl.store(dbias_ptr + row * key_rows + keys, sums, mask=keys < key_rows)
    else:
        queries = (first_query + rows)[:, None]
        pointers = dbias_ptr + (row * query_rows + queries) * key_rows + keys[None, :]
        mask = (queries < query_rows) & (keys < key_rows)[None, :]
        tl.store(pointers, dbias.to(dbias_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class BiasGradientConfig(Config):
    """Each program takes a tile of BLOCK_QUERIES × BLOCK_KEYS. `described`, `bf16x3`: as in `GradientConfig`."""

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    bf16x3: str = ""
    programs_per_multiprocessor: int = 2


def bias_gradient_config(problem: Problem, described: bool, split: bool) -> BiasGradientConfig:
    """Return the default tiles. `split`: this kernel, not the compiler, splits exact single precision."""
    if split:
        source = source_of_parts(problem)
        keys = 64 if source == "stored" and not problem.gathers_bias else 32
        return BiasGradientConfig(num_warps=4, num_stages=2, BLOCK_KEYS=keys, bf16x3=source)
    warps = 4
    queries, keys = (64, 64) if problem.head_block <= 64 and problem.q.element_bytes == 2 and described else (32, 32)
    if problem.has_light_scores and described:
        queries = 128  # 88 µs for a triangle of 256 residues on an H200, 134 with 64
        if problem.gathers_bias:  # as of the ending node: its addresses fill the registers of four warps
            warps = 8
    if problem.seed is not None and problem.softcap:
        keys = 32  # 64 keys with a bias that TMA cannot load exceed Hopper's register budget
        warps = 8 if problem.mask is not None else warps  # four spill on Ampere
    return BiasGradientConfig(
        num_warps=warps, num_stages=2, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, described=described
    )  # fmt: skip


def plan_bias_gradient(plan: Plan, task: Gradients, parts: StoredParts, statistics: Operand) -> Operand:
    """Plan dbias, in the bias' own shape and dtype."""
    problem, doutput = task.problem, task.doutput
    assert problem.bias is not None
    dbias = plan.empty(problem.bias.shape, problem.bias.dtype)
    sequences, heads, rows, keys = problem.bias_shape
    one_row = rows == 1 and problem.queries != 1  # of no queries too: the sum is zero
    described = problem.describable(doutput)
    default = bias_gradient_config(problem, described, problem.gains_from_splitting(described))
    config = plan.choose(default, "bias", *problem.sizes)
    query_blocks = triton.cdiv(problem.queries, config.BLOCK_QUERIES)
    tiles = sequences * heads * triton.cdiv(keys, config.BLOCK_KEYS) * (1 if one_row else query_blocks)
    repeats = problem.sequences // max(sequences, 1) * (problem.heads // max(heads, 1))
    repeats *= query_blocks if one_row else 1
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    splits = min(max(programs // max(tiles, 1), 1), max(repeats, 1))
    repeats_per_split = max(triton.cdiv(repeats, splits), 1)
    splits = max(triton.cdiv(repeats, repeats_per_split), 1)  # an empty sum too: it is zero
    size = sequences * heads * rows * keys
    found = plan.empty((splits, size), problem.statistics_dtype) if splits > 1 else dbias
    blocks = {
        "q": config.BLOCK_QUERIES,
        "doutput": config.BLOCK_QUERIES,
        "k": config.BLOCK_KEYS,
        "v": config.BLOCK_KEYS,
    }
    tensors, walk = problem.tiles(blocks, config.described, **{"doutput": doutput, **parts.stored_for(config)})
    plan.launch(
        attention_dbias_kernel, (tiles, splits), config,
        **problem.arguments(), **tensors, **problem.bias_tiles(config), statistics_ptr=statistics, dbias_ptr=found,
        bias_heads=heads,
        n_repeats=repeats, repeats_per_split=repeats_per_split, split_size=size,
        WALK=walk, BF16X3=parts.source(config), ONE_ROW=one_row, PRECISION=problem.precision,
    )  # fmt: skip
    if splits > 1:
        plan_sum_of_partials(plan, found, dbias.seen_as((size,), (1,)), problem.compute)
    return dbias
