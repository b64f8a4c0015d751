"""The portable backward: it computes the weights again from q, k and log₂ Σ 2^score. No S×T matrix reaches memory.

With weights p, and δ = Σ over columns of do · o, one number per query:

dv = pᵀ · do,    dp = do · vᵀ,    ds = p · (dp − δ),    dq = scale · ds · k,    dk = scale · dsᵀ · q.

dq sums over keys, dk and dv sum over queries, so there are two kernels. In `attention_dq_kernel` a block of queries
walks along the keys, and stores δ too. In `attention_dkdv_kernel` a block of keys walks along the queries of every head
that shares it. Both compute p and dp: seven products in all where five would do. But no two programs add to the same
element: no atomics, the same bits at every run. Where one block holds all keys, the second kernel computes dq too, with
five products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.attention.device.score_gradients import Chunk, ScoreSizes, store_dscores
from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, weighed
from tilesmith.ops.attention.device.split_operands import (
    StoredParts,
    joined,
    key_and_value_rows,
    load_operand,
    multiplied,
    only_rows,
    operand_like,
    operand_rows,
    transposed,
)
from tilesmith.ops.attention.device.tiles import (
    DELTA,
    LSE,
    NOT_SPECIALISED,
    UNMASKED,
    HeadRows,
    Statistics,
    block_of_program,
    dropout_stream,
    head_rows,
    is_attended,
    is_kept,
    keys_seen,
    load_statistics,
    load_tile,
    parts_of_keys,
    place_of,
    queries_that_see,
    query_place,
    rows_of_sequence,
    store_statistics,
    store_tile,
)  # fmt: skip
from tilesmith.ops.attention.kernels.backward_tiles import GradientConfig, key_gradient_config, query_gradient_config
from tilesmith.ops.attention.kernels.bias_gradient import plan_bias_gradient
from tilesmith.ops.attention.kernels.group_parts import number_of_parts, plan_sum_of_parts, with_parts
from tilesmith.ops.attention.problem import Gradients
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr,
    output_ptr, doutput_ptr, lse_ptr, statistics_ptr, dq_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides, doutput_strides, dq_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dq and δ of a block of queries."""
    sequence, head, start = block_of_program(query_starts_ptr, n_sequences, n_heads, query_rows, BLOCK_QUERIES, True)
    first_query, n_queries = rows_of_sequence(query_starts_ptr, sequence, query_rows)
    if start >= n_queries:
        return
    first_key, n_keys = rows_of_sequence(key_starts_ptr, sequence, key_rows)
    place = place_of(sequence, per_member)
    q_rows = operand_rows(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3
    )
    output_rows = head_rows(
        output_ptr, output_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK
    )
    doutput_rows = operand_rows(
        doutput_ptr, doutput_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3
    )
    dq_rows = head_rows(dq_ptr, dq_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)
    k_rows, v_rows = key_and_value_rows(
        (k_ptr, k_strides), (v_ptr, v_strides), n_heads // group, first_key, n_keys,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3,
    )  # fmt: skip
    scoring = Scoring(n_queries, n_keys, left, right, scale, softcap, bias_ptr, bias_strides)
    statistics = Statistics(statistics_ptr, query_starts_ptr, n_heads, query_rows, first_query, n_queries)
    stream = dropout_stream(seed_ptr, sequence * n_heads + head)

    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    q = load_operand(q_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
    doutput = load_operand(doutput_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
    output = load_tile(output_rows, place, head, start, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, True)
    delta = tl.sum(output.to(COMPUTE) * joined(doutput).to(COMPUTE), axis=1)  # [BLOCK_QUERIES]
    lse_ptr += query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
    lse = tl.load(lse_ptr + start + rows, mask=start + rows < n_queries, other=float("inf"))  # [BLOCK_QUERIES]
    store_statistics(statistics, sequence, head, start, lse, delta, BLOCK_QUERIES)
    dq = tl.zeros([BLOCK_QUERIES, BLOCK_HEAD], COMPUTE)  # [BLOCK_QUERIES, BLOCK_HEAD]

    edges = keys_seen(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    begins, ends = parts_of_keys(edges, mask_ptr, mask_strides, place, n_keys, BLOCK_KEYS)
    for part in tl.static_range(3 if mask_ptr is None else 4):
        for key in tl.range(begins[part], ends[part], BLOCK_KEYS):
            k = load_operand(
                k_rows, place, head // group, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, part % 2 == 0
            )
            v = load_operand(
                v_rows, place, head // group, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, part % 2 == 0
            )
            products = multiplied(q, transposed(k), None, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_KEYS]
            weights, slope = weighed(
                products, ScoreTile(place, head, start, key, rows[:, None], columns[None, :]), scoring,
                lse[:, None], None,
                BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32, part % 2 == 0,
            )  # fmt: skip
            dweights = multiplied(doutput, transposed(v), None, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_KEYS]
            if seed_ptr is not None:
                kept = is_kept(stream, start + rows[:, None], key + columns[None, :], drop_below)
                dweights = tl.where(kept, dweights * keep_scale, 0.0)
            dscores = weights * (dweights - delta[:, None])  # [BLOCK_QUERIES, BLOCK_KEYS]
            if softcap is not None:
                dscores *= slope
            if mask_ptr is not None and part != UNMASKED:
                attended = is_attended(mask_ptr, mask_strides, place, key, columns[None, :], n_keys)
                dscores = tl.where(attended, dscores, 0.0)
                k = only_rows(k, is_attended(mask_ptr, mask_strides, place, key, columns[:, None], n_keys))
            dq = multiplied(operand_like(dscores, k), k, dq, COMPUTE, PRECISION)

    store_tile(dq_rows, place, head, start, dq * scale, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "first_sequence", "n_parts"])
def attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr,
    output_ptr, doutput_ptr, lse_ptr, statistics_ptr, dq_ptr, dk_ptr, dv_ptr, dscores_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides, doutput_strides, dq_strides,
    dk_strides, dv_strides, first_sequence, n_parts,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, WITH_DQ: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a block of keys. WITH_DQ, where one block holds all keys: dq and δ too.

    With dscores_ptr the kernel stores ds as well. Then the sequences are those of a chunk, from `first_sequence` on.
    With n_parts each key head is split: `group`, dk and dv are those of a part of its query heads.
    """
    sequence, key_head, start = block_of_program(
        key_starts_ptr, n_sequences, n_heads // group, key_rows, BLOCK_KEYS, False
    )
    place_in_chunk = sequence
    if dscores_ptr is not None:
        sequence += first_sequence
    first_key, n_keys = rows_of_sequence(key_starts_ptr, sequence, key_rows)
    if start >= n_keys:
        return
    first_query, n_queries = rows_of_sequence(query_starts_ptr, sequence, query_rows)
    place = place_of(sequence, per_member)
    q_rows = operand_rows(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3
    )
    doutput_rows = operand_rows(
        doutput_ptr, doutput_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3
    )
    k_rows, v_rows = key_and_value_rows(
        (k_ptr, k_strides), (v_ptr, v_strides), n_heads // group, first_key, n_keys,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3,
    )  # fmt: skip
    dk_rows = head_rows(dk_ptr, dk_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    dv_rows = head_rows(dv_ptr, dv_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    output_rows = HeadRows(output_ptr, output_strides, first_query, n_queries)
    dq_rows = HeadRows(dq_ptr, dq_strides, first_query, n_queries)
    scoring = Scoring(n_queries, n_keys, left, right, scale, softcap, bias_ptr, bias_strides)
    statistics = Statistics(statistics_ptr, query_starts_ptr, n_heads, query_rows, first_query, n_queries)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    whole_head = key_head // n_parts
    k = load_operand(k_rows, place, whole_head, start, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
    v = load_operand(v_rows, place, whole_head, start, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, BF16X3, True)
    attended = None
    if mask_ptr is not None:
        attended = is_attended(mask_ptr, mask_strides, place, start, columns[:, None], n_keys)
        k = only_rows(k, attended)
    dk = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)  # [BLOCK_KEYS, BLOCK_HEAD]
    dv = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)  # [BLOCK_KEYS, BLOCK_HEAD]

    # With dq, the loop visits every query, and keys past the last must not add to dq. So one loop checks everything.
    # Without dq, keys past the last only reach rows of dk and dv that are not stored.
    edges = (0, n_queries)
    if not WITH_DQ:
        edges = queries_that_see(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    # One loop over the heads of the group and their queries: two nested loops spill with tiles of this size.
    for part in tl.static_range(1 if WITH_DQ else 3):
        blocks = tl.cdiv(edges[part + 1] - edges[part], BLOCK_QUERIES)
        if attended is not None and not WITH_DQ and dscores_ptr is None:  # keys that are all masked need no queries
            blocks = tl.where(tl.max(attended.to(tl.int32)) == 0, 0, blocks)
        for index in tl.range(0, blocks * group):
            head = key_head
            query = edges[part] + index * BLOCK_QUERIES
            if dscores_ptr is None:  # chunks have no GQA, which saves each tile a division
                head = key_head * group + index // blocks
                query = edges[part] + index % blocks * BLOCK_QUERIES
            stream = dropout_stream(seed_ptr, sequence * n_heads + head)
            q = load_operand(q_rows, place, head, query, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, part != 1)
            doutput = load_operand(
                doutput_rows, place, head, query, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, BF16X3, part != 1
            )
            if WITH_DQ:
                head_lse_ptr = lse_ptr + query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
                lse = tl.load(head_lse_ptr + query + rows, mask=query + rows < n_queries, other=float("inf"))
                output = load_tile(output_rows, place, head, query, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, True)
                delta = tl.sum(output.to(COMPUTE) * joined(doutput).to(COMPUTE), axis=1)  # [BLOCK_QUERIES]
                store_statistics(statistics, sequence, head, query, lse, delta, BLOCK_QUERIES)
            else:
                lse = load_statistics(statistics, sequence, head, query, LSE, BLOCK_QUERIES, WALK, part != 1)
                delta = load_statistics(statistics, sequence, head, query, DELTA, BLOCK_QUERIES, WALK, part != 1)
            products = multiplied(k, transposed(q), None, COMPUTE, PRECISION)  # [BLOCK_KEYS, BLOCK_QUERIES]
            weights, slope = weighed(
                products, ScoreTile(place, head, query, start, rows[None, :], columns[:, None]), scoring,
                lse[None, :], attended,
                BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32, part != 1,
            )  # fmt: skip
            used = weights
            if seed_ptr is not None:
                kept = is_kept(stream, query + rows[None, :], start + columns[:, None], drop_below)
                used = tl.where(kept, weights, 0.0)
            dv = multiplied(operand_like(used, doutput), doutput, dv, COMPUTE, PRECISION)
            dweights = multiplied(v, transposed(doutput), None, COMPUTE, PRECISION)  # [BLOCK_KEYS, BLOCK_QUERIES]
            if seed_ptr is not None:
                dweights = tl.where(kept, dweights * keep_scale, 0.0)
            dscores = weights * (dweights - delta[None, :])  # [BLOCK_KEYS, BLOCK_QUERIES]
            if softcap is not None:
                dscores *= slope
            if mask_ptr is not None and (WITH_DQ or dscores_ptr is not None):
                dscores = tl.where(attended, dscores, 0.0)
            dscores = operand_like(dscores, q)
            if dscores_ptr is not None:
                store_dscores(
                    dscores_ptr,
                    ScoreSizes(n_heads, n_queries, n_keys),
                    place_in_chunk,
                    head,
                    start,
                    query,
                    dscores[0],
                    WALK,
                )
            dk = multiplied(dscores, q, dk, COMPUTE, PRECISION)
            if WITH_DQ:
                dq = multiplied(transposed(dscores), k, None, COMPUTE, PRECISION) * scale  # [BLOCK_QUERIES, BLOCK_HEAD]
                store_tile(dq_rows, place, head, query, dq, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)

    if mask_ptr is not None:
        dk = tl.where(attended, dk, 0.0)
        dv = tl.where(attended, dv, 0.0)
    store_tile(dk_rows, place, key_head, start, dk * scale, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    store_tile(dv_rows, place, key_head, start, dv * keep_scale, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)


def plan_gradients(plan: Plan, task: Gradients, parts: StoredParts) -> Operand:
    """Plan dq, dk and dv. Returns the statistics of the queries."""
    problem, output, doutput, lse, dq = task.problem, task.output, task.doutput, task.lse, task.dq
    statistics = plan.empty(problem.statistics_shape, problem.statistics_dtype)
    described = problem.describable(output, doutput)
    split = problem.gains_from_splitting(described)
    key_config = plan.choose(key_gradient_config(problem, described, split), "keys", *problem.sizes)
    with_dq = key_config.with_dq and not problem.packed and 0 < problem.keys <= key_config.BLOCK_KEYS
    tensors = {"output": output, "doutput": doutput, "dq": dq}
    if not with_dq:
        config = plan.choose(query_gradient_config(problem, described, split), "queries", *problem.sizes)
        rows = {**dict.fromkeys(_ROWS_OF_Q, config.BLOCK_QUERIES), **dict.fromkeys(("k", "v"), config.BLOCK_KEYS)}
        tiles, walk = problem.tiles(rows, config.described, **{**tensors, **parts.stored_for(config)})
        plan.launch(
            attention_dq_kernel, (problem.heads * problem.blocks(problem.queries, config.BLOCK_QUERIES),), config,
            **problem.arguments(), **tiles, **problem.bias_tiles(config), lse_ptr=lse, statistics_ptr=statistics,
            WALK=walk, BF16X3=parts.source(config), PRECISION=problem.precision,
        )  # fmt: skip
    plan_key_gradients(plan, task, key_config, parts, statistics, with_dq)
    return statistics


_ROWS_OF_Q, _ROWS_OF_K = ("q", "output", "doutput", "dq"), ("k", "v", "dk", "dv")


def plan_key_gradients(
    plan: Plan, task: Gradients, config: GradientConfig, stored: StoredParts, statistics: Operand, with_dq: bool,
    chunk: Chunk | None = None,
) -> None:  # fmt: skip
    """Plan dk and dv of all sequences, or of a chunk of them, whose ds the kernel stores."""
    problem, whole = task.problem, task
    blocks = problem.blocks(problem.keys, config.BLOCK_KEYS)
    parts = number_of_parts(problem, problem.key_heads * blocks, config.least_programs)
    task = with_parts(whole, parts)
    tensors = {"output": task.output, "doutput": task.doutput, "dq": task.dq, "dk": task.dk, "dv": task.dv}
    rows = {**dict.fromkeys(_ROWS_OF_Q, config.BLOCK_QUERIES), **dict.fromkeys(_ROWS_OF_K, config.BLOCK_KEYS)}
    tiles, walk = problem.tiles(rows, config.described, **{**tensors, **stored.stored_for(config)})
    fetched = walk == "described" and not with_dq  # those of a packed sequence may begin inside a unit
    dscores: object = None
    if chunk is not None:
        blocks = chunk.count * triton.cdiv(problem.keys, config.BLOCK_KEYS)
        block = (1, 1, config.BLOCK_KEYS, config.BLOCK_QUERIES)
        dscores = chunk.dscores.descriptor(block) if walk == "described" else chunk.dscores
    plan.launch(
        attention_dkdv_kernel, (parts * problem.key_heads * blocks,), config,
        **{**problem.arguments(), "group": problem.group // parts}, **tiles, **problem.bias_tiles(config),
        lse_ptr=task.lse, n_parts=parts,
        statistics_ptr=statistics.descriptor((1, 1, 1, config.BLOCK_QUERIES)) if fetched else statistics,
        dscores_ptr=dscores, first_sequence=0 if chunk is None else chunk.first,
        WALK=walk, BF16X3=stored.source(config), WITH_DQ=with_dq, PRECISION=problem.precision,
    )  # fmt: skip
    plan_sum_of_parts(whole, task, parts)


class PortableBackward:
    """Every problem, on every GPU: a kernel for dq, one for dk and dv, and one for dbias."""

    def takes(self, task: Gradients) -> bool:
        return True

    def suits(self, task: Gradients) -> bool:
        return True

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        """Plan dq, dk and dv, and dbias if it is wanted."""
        plan = task.problem.plan
        parts = StoredParts(plan, task.problem, task.doutput)
        statistics = plan_gradients(plan, task, parts)
        gradients = task.dq, task.dk, task.dv
        return (*gradients, plan_bias_gradient(plan, task, parts, statistics)) if task.wants_dbias else gradients
