"""The backward: the weights are computed again from q, k and log₂ Σ 2^score; nothing of size S×T is kept.

With weights p, and δ = Σ over columns of do · o, one number per query:

dv = pᵀ · do,    dp = do · vᵀ,    ds = p · (dp − δ),    dq = scale · ds · k,    dk = scale · dsᵀ · q.

dq sums over keys, dk and dv over queries, so two kernels: in one a block of queries walks along the keys and leaves δ
too, in the other a block of keys walks along the queries of every head that shares it. Both work out p and dp, seven
products in all where five would do, and no two programs ever add to the same place: no atomics, the same bits at every
run. Where one block holds all keys, a single kernel does it all with five. Where sequences share a bias whose gradient
is wanted, `chunked_backward.py` has the second kernel leave ds for others to read. For long sequences on Hopper,
`hopper_backward.py` does with five products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.attention.device.bf16x3 import (
    Planes,
    load_planes,
    multiplied,
    planes_like,
    planes_of_sequence,
    turned,
    whole,
)
from tilesmith.ops.attention.device.score_gradients import Chunk, store_dscores
from tilesmith.ops.attention.device.scores import weighed
from tilesmith.ops.attention.device.tiles import (
    DELTA,
    LSE,
    NOT_SPECIALISED,
    block_of_program,
    dropout_stream,
    is_attended,
    is_kept,
    keys_seen,
    load_statistics,
    load_tile,
    of_sequence,
    place_of,
    queries_that_see,
    query_place,
    rows_of_sequence,
    store_statistics,
    store_tile,
)  # fmt: skip
from tilesmith.ops.attention.form import Form, Gradients, always
from tilesmith.ops.attention.kernels.backward_tiles import GradientConfig, key_gradient_config, query_gradient_config
from tilesmith.ops.attention.kernels.bias_gradient import plan_bias_gradient
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr,
    output_ptr, doutput_ptr, lse_ptr, statistics_ptr, dq_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides, doutput_strides, dq_strides,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, PLANES: tl.constexpr, BIAS_DESCRIBED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """dq and δ for a block of queries."""
    sequence, head, start = block_of_program(query_starts_ptr, n_sequences, n_heads, query_rows, BLOCK_QUERIES, True)
    first_query, n_queries = rows_of_sequence(query_starts_ptr, sequence, query_rows)
    if start >= n_queries:
        return
    first_key, n_keys = rows_of_sequence(key_starts_ptr, sequence, key_rows)
    place = place_of(sequence, per_member)
    q_ptr = planes_of_sequence(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    output_ptr = of_sequence(
        output_ptr, output_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK
    )
    doutput_ptr = planes_of_sequence(
        doutput_ptr, doutput_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    dq_ptr = of_sequence(dq_ptr, dq_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)
    k_ptr = planes_of_sequence(
        k_ptr, k_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    v_ptr = planes_of_sequence(
        v_ptr, v_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    stream = dropout_stream(seed_ptr, sequence * n_heads + head)

    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    q = load_planes(
        q_ptr, q_strides, place, head, first_query, start, n_queries,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES, True,
    )  # fmt: skip
    doutput = load_planes(
        doutput_ptr, doutput_strides, place, head, first_query, start, n_queries,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES, True,
    )  # fmt: skip
    output = load_tile(
        output_ptr, output_strides, place, head, first_query, start, n_queries,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, True,
    )  # fmt: skip
    delta = tl.sum(output.to(COMPUTE) * whole(doutput).to(COMPUTE), axis=1)
    lse_ptr += query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
    lse = tl.load(lse_ptr + start + rows, mask=start + rows < n_queries, other=float("inf"))
    store_statistics(
        statistics_ptr, query_starts_ptr, sequence, head, n_heads, query_rows, first_query, start, n_queries,
        lse, delta, BLOCK_QUERIES,
    )  # fmt: skip
    dq = tl.zeros([BLOCK_QUERIES, BLOCK_HEAD], COMPUTE)

    edges = keys_seen(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    for part in tl.static_range(3):
        for key in tl.range(edges[part], edges[part + 1], BLOCK_KEYS):
            k = load_planes(
                k_ptr, k_strides, place, head // group, first_key, key, n_keys,
                BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, part != 1,
            )  # fmt: skip
            v = load_planes(
                v_ptr, v_strides, place, head // group, first_key, key, n_keys,
                BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, part != 1,
            )  # fmt: skip
            products = multiplied(q, turned(k), None, COMPUTE, PRECISION)
            attended = None
            if mask_ptr is not None:
                attended = is_attended(mask_ptr, mask_strides, place, key, columns[None, :], n_keys)
            weights, slope = weighed(
                products, place, head, start, key, rows[:, None], columns[None, :], lse[:, None], attended,
                bias_ptr, bias_strides, n_queries, n_keys, left, right, scale, softcap,
                BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32, part != 1,
            )  # fmt: skip
            dweights = multiplied(doutput, turned(v), None, COMPUTE, PRECISION)
            if seed_ptr is not None:
                kept = is_kept(stream, start + rows[:, None], key + columns[None, :], drop_below)
                dweights = tl.where(kept, dweights * keep_scale, 0.0)
            dscores = weights * (dweights - delta[:, None])
            if softcap is not None:
                dscores *= slope
            dq = multiplied(planes_like(dscores, k), k, dq, COMPUTE, PRECISION)

    store_tile(
        dq_ptr, dq_strides, place, head, first_query, start, n_queries, dq * scale,
        BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK,
    )  # fmt: skip


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "first_sequence"])
def attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, seed_ptr, query_starts_ptr, key_starts_ptr,
    output_ptr, doutput_ptr, lse_ptr, statistics_ptr, dq_ptr, dk_ptr, dv_ptr, dscores_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides, doutput_strides, dq_strides,
    dk_strides, dv_strides, first_sequence,
    n_sequences, per_member, n_heads, group, query_rows, key_rows, left, right, scale, softcap, drop_below, keep_scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, PLANES: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """dk and dv for a block of keys; where it is the WHOLE of them, dq and δ too.

    With room for ds, the sequences are those of a chunk, of which this is the first.
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
    q_ptr = planes_of_sequence(
        q_ptr, q_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    doutput_ptr = planes_of_sequence(
        doutput_ptr, doutput_strides, n_heads, first_query, n_queries, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    k_ptr = planes_of_sequence(
        k_ptr, k_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    v_ptr = planes_of_sequence(
        v_ptr, v_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES
    )
    dk_ptr = of_sequence(dk_ptr, dk_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    dv_ptr = of_sequence(dv_ptr, dv_strides, n_heads // group, first_key, n_keys, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    k = load_planes(
        k_ptr, k_strides, place, key_head, first_key, start, n_keys,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, True,
    )  # fmt: skip
    v = load_planes(
        v_ptr, v_strides, place, key_head, first_key, start, n_keys,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, PLANES, True,
    )  # fmt: skip
    attended = None
    if mask_ptr is not None:
        attended = is_attended(mask_ptr, mask_strides, place, start, columns[:, None], n_keys)
    dk = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)
    dv = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)

    # Where dq comes out of this too, every query has to be visited; and keys beyond the last, which otherwise only have
    # rows of dk and dv that nobody stores, must not add to it: one loop, in which all is checked.
    edges = (0, n_queries)
    if not WHOLE:
        edges = queries_that_see(start, n_queries, n_keys, left, right, BLOCK_QUERIES, BLOCK_KEYS)
    # The heads of the group one after the other, in one loop: with a loop around this one, tiles this large spill.
    for part in tl.static_range(1 if WHOLE else 3):
        blocks = tl.cdiv(edges[part + 1] - edges[part], BLOCK_QUERIES)
        for index in tl.range(0, blocks * group):
            head = key_head
            query = edges[part] + index * BLOCK_QUERIES
            if dscores_ptr is None:  # in chunks no heads share keys, which spares each tile a division
                head = key_head * group + index // blocks
                query = edges[part] + index % blocks * BLOCK_QUERIES
            stream = dropout_stream(seed_ptr, sequence * n_heads + head)
            q = load_planes(
                q_ptr, q_strides, place, head, first_query, query, n_queries,
                BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES, part != 1,
            )  # fmt: skip
            doutput = load_planes(
                doutput_ptr, doutput_strides, place, head, first_query, query, n_queries,
                BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, PLANES, part != 1,
            )  # fmt: skip
            if WHOLE:
                head_lse_ptr = lse_ptr + query_place(query_starts_ptr, sequence, head, n_heads, query_rows, first_query)
                lse = tl.load(head_lse_ptr + query + rows, mask=query + rows < n_queries, other=float("inf"))
                output = load_tile(
                    output_ptr, output_strides, place, head, first_query, query, n_queries,
                    BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, True,
                )  # fmt: skip
                delta = tl.sum(output.to(COMPUTE) * whole(doutput).to(COMPUTE), axis=1)
                store_statistics(
                    statistics_ptr, query_starts_ptr, sequence, head, n_heads, query_rows, first_query, query,
                    n_queries, lse, delta, BLOCK_QUERIES,
                )  # fmt: skip
            else:
                lse = load_statistics(
                    statistics_ptr, query_starts_ptr, sequence, head, n_heads, query_rows, first_query, query,
                    n_queries, LSE, BLOCK_QUERIES, WALK, part != 1,
                )  # fmt: skip
                delta = load_statistics(
                    statistics_ptr, query_starts_ptr, sequence, head, n_heads, query_rows, first_query, query,
                    n_queries, DELTA, BLOCK_QUERIES, WALK, part != 1,
                )  # fmt: skip
            products = multiplied(k, turned(q), None, COMPUTE, PRECISION)
            weights, slope = weighed(
                products, place, head, query, start, rows[None, :], columns[:, None], lse[None, :], attended,
                bias_ptr, bias_strides, n_queries, n_keys, left, right, scale, softcap,
                BIAS_DESCRIBED, len(q) == 3 or q[0].dtype == tl.float32, part != 1,
            )  # fmt: skip
            used = weights
            if seed_ptr is not None:
                kept = is_kept(stream, query + rows[None, :], start + columns[:, None], drop_below)
                used = tl.where(kept, weights, 0.0)
            dv = multiplied(planes_like(used, doutput), doutput, dv, COMPUTE, PRECISION)
            dweights = multiplied(v, turned(doutput), None, COMPUTE, PRECISION)
            if seed_ptr is not None:
                dweights = tl.where(kept, dweights * keep_scale, 0.0)
            dscores = weights * (dweights - delta[None, :])
            if softcap is not None:
                dscores *= slope
            dscores = planes_like(dscores, q)
            if dscores_ptr is not None:
                store_dscores(
                    dscores_ptr, place_in_chunk, head, start, query, n_heads, n_queries, n_keys, dscores[0], WALK
                )
            dk = multiplied(dscores, q, dk, COMPUTE, PRECISION)
            if WHOLE:
                dq = multiplied(turned(dscores), k, None, COMPUTE, PRECISION) * scale
                store_tile(
                    dq_ptr, dq_strides, place, head, first_query, query, n_queries, dq,
                    BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK,
                )  # fmt: skip

    store_tile(
        dk_ptr, dk_strides, place, key_head, first_key, start, n_keys, dk * scale,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK,
    )  # fmt: skip
    store_tile(
        dv_ptr, dv_strides, place, key_head, first_key, start, n_keys, dv * keep_scale,
        BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK,
    )  # fmt: skip


def plan_portable_backward(plan: Plan, task: Gradients) -> tuple[Operand, ...]:
    """Plan dq, dk and dv, and dbias if it is wanted."""
    planes = Planes(plan, task.problem, task.doutput)
    statistics = plan_gradients(plan, task, planes)
    gradients = task.dq, task.dk, task.dv
    return (*gradients, plan_bias_gradient(plan, task, planes, statistics)) if task.wants_dbias else gradients


def plan_gradients(plan: Plan, task: Gradients, planes: Planes) -> Operand:
    """Plan dq, dk and dv. Returns the statistics of the queries."""
    problem, output, doutput, lse, dq = task.problem, task.output, task.doutput, task.lse, task.dq
    statistics = plan.empty(problem.statistics_shape, problem.statistics_dtype)
    described = problem.describable(plan, output, doutput)
    in_planes = problem.gains_from_planes(plan, described)
    key_config = plan.choose(key_gradient_config(problem, described, in_planes), "keys", *problem.sizes)
    is_whole = key_config.whole and not problem.packed and 0 < problem.keys <= key_config.BLOCK_KEYS
    tensors = {"output": output, "doutput": doutput, "dq": dq}
    if not is_whole:
        config = plan.choose(query_gradient_config(problem, described, in_planes), "queries", *problem.sizes)
        rows = {**dict.fromkeys(_ROWS_OF_Q, config.BLOCK_QUERIES), **dict.fromkeys(("k", "v"), config.BLOCK_KEYS)}
        tiles, walk = problem.tiles(rows, config.described, **{**tensors, **planes.stored_for(config)})
        plan.launch(
            attention_dq_kernel, (problem.heads * problem.blocks(problem.queries, config.BLOCK_QUERIES),), config,
            **problem.arguments(), **tiles, **problem.bias_tiles(config), lse_ptr=lse, statistics_ptr=statistics,
            WALK=walk, PLANES=planes.where(config), PRECISION=problem.precision(plan),
        )  # fmt: skip
    plan_key_gradients(plan, task, key_config, planes, statistics, is_whole)
    return statistics


_ROWS_OF_Q, _ROWS_OF_K = ("q", "output", "doutput", "dq"), ("k", "v", "dk", "dv")


def plan_key_gradients(
    plan: Plan, task: Gradients, config: GradientConfig, planes: Planes, statistics: Operand, is_whole: bool,
    chunk: Chunk | None = None,
) -> None:  # fmt: skip
    """Plan dk and dv of all sequences, or of a chunk of them, whose ds the kernel stores."""
    problem = task.problem
    tensors = {"output": task.output, "doutput": task.doutput, "dq": task.dq, "dk": task.dk, "dv": task.dv}
    rows = {**dict.fromkeys(_ROWS_OF_Q, config.BLOCK_QUERIES), **dict.fromkeys(_ROWS_OF_K, config.BLOCK_KEYS)}
    tiles, walk = problem.tiles(rows, config.described, **{**tensors, **planes.stored_for(config)})
    fetched = walk == "described" and not is_whole  # those of a packed sequence may begin inside a unit
    blocks = problem.blocks(problem.keys, config.BLOCK_KEYS)
    dscores: object = None
    if chunk is not None:
        blocks = chunk.count * triton.cdiv(problem.keys, config.BLOCK_KEYS)
        block = (1, 1, config.BLOCK_KEYS, config.BLOCK_QUERIES)
        dscores = chunk.dscores.descriptor(block) if walk == "described" else chunk.dscores
    plan.launch(
        attention_dkdv_kernel, (problem.key_heads * blocks,), config,
        **problem.arguments(), **tiles, **problem.bias_tiles(config), lse_ptr=task.lse,
        statistics_ptr=statistics.descriptor((1, 1, 1, config.BLOCK_QUERIES)) if fetched else statistics,
        dscores_ptr=dscores, first_sequence=0 if chunk is None else chunk.first,
        WALK=walk, PLANES=planes.where(config), WHOLE=is_whole, PRECISION=problem.precision(plan),
    )  # fmt: skip


PORTABLE_BACKWARD = Form("portable", takes=always, suits=always, plan=plan_portable_backward)
