"""The backward kernel for Hopper: dq, dk and dv of attention.

    weights = exp2(scale · log2(e) · k·qᵀ − lse)        transposed: one row per key
    ds = weights ∘ (v·doᵀ − δ)                          ∘: element by element
    dv = weights·do    dk = scale · ds·q    dq = scale · dsᵀ·k

lse is the logarithm, to base 2, of a query's sum of exponentials, and δ = Σ do ∘ o; `kernels/delta.py` computes δ.

The kernel takes float16 and bfloat16, heads of 33 to 128 elements, causal or not, and a limit on later keys. A head is
one tile of 64 or 128 columns, or two tiles: 64 + 16 and 64 + 32 (`head_tiles.py`). The kernel takes no bias, mask
tensor, softcap, dropout or limit on earlier keys (`problems.py`). `backward_plan.py` launches it for more than 32
tokens; `attention/forms.py` lists it beside the other forms.

The portable backward (`attention/kernels/backward.py`) computes weights and their gradients in two kernels: seven
products. This kernel needs five. A program computes 128 keys and loops over the queries that attend to them. dk and dv
stay in registers. The program adds its part of dq to a sum in memory, in single precision, by TMA. Gradients must be
the same bits at every run, so the programs of a head add to each block of queries in a fixed order. The first stores
its part, and the last reads the sum, scales, rounds and stores dq; a program that is alone stores dq at once. A counter
for each block of queries holds how many programs have added. The kernel of δ sets the counters to zero.

The order is that of program numbers, so there is no deadlock: a program waits only for programs of lower numbers, which
the GPU starts first. In descending order of keys waits are short: under a causal mask, programs of later keys start at
a later block of queries, and have finished a block before programs of earlier keys reach it. But programs of the last
keys have the fewest queries, and starting long programs last leaves multiprocessors idle at the end, more so with
larger GQA groups. With GQA the planner therefore sets ASCENDING.

Two consumer warpgroups have 64 keys each. Weights and ds lie in registers as the left operands of the products with do
and q. ds also goes to shared memory, where both warpgroups read all of it, and each computes a tile of dq with 64 rows:
with one tile of 128 columns, half the columns of 64 queries; with one of 64, half the rows of 128 queries; with two
tiles, a whole tile of 64 queries. Half the columns of both tiles would be the same flops in more products, and each
product reads all of ds from shared memory. `backward_warps.py` has the warps that load, wait for the program's turn to
add, add and store.

A warpgroup computes the weights of 64 queries while their product v·doᵀ runs, and their ds while their product with do
runs. All products end before the loop body does: if one is outstanding at its end, ptxas makes every product wait for
the one before.

TFLOP/s on an H200 at its power limit, bf16, 10 · queries · keys · head flops a head (half if causal), with the kernel
of δ. 16,384 tokens of 16 heads of 128: 575 in sequences of 4,096, causal 525; 572 and 549 in one sequence. 32 heads of
64: 476 and 442 in sequences of 4,096, 490 and 483 in one. In one tile of 128 columns, 4 × 4,096 tokens of 16 heads of
96 take 2,233 µs, in two tiles 2,124; of 80 2,209 and 1,902
(`benchmarks/tuning/attention_backward_two_tiles-h200.json`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.attention.device.tiles import NOT_SPECIALISED
from tilesmith.ops.attention.hopper.backward_warps import (
    COUNTED,
    DONE,
    DQ_FREE,
    DQ_READY,
    DS_READY,
    GROUPS,
    KEYS,
    KEYS_READY,
    MAY_ADD,
    ROWS,
    SLOTS,
    SharedTiles,
    Sizes,
    add_and_store,
    allocate_dq,
    fetch_tiles,
    form,
    in_half_precision,
    place_in_dq,
    poll_counters,
    tile_of_sums,
    work_of_program,
)
from tilesmith.ops.attention.hopper.dq_sums import (
    DQ_COLUMNS,
    DQ_ROWS,
    in_order_of_sum,
    sum_so_far,
)
from tilesmith.ops.attention.hopper.head_tiles import (
    HeadTiles,
    allocate_heads,
    products_layout,
    round_into,
    rows_of_head,
    start_product,
    start_sum,
)
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import GROUP_WARPS, hidden_zero
from tilesmith.toolchain.gluon import thread_barrier

BLOCK = gl.constexpr(64)  # queries whose weights, and their gradients, a warpgroup has in registers at a time
REGISTERS = gl.constexpr(240)  # per thread of the second consumer warpgroup; the first gets what the others leave
LARGE = gl.constexpr(1 << 29)  # `right` is 2³⁰ where there is no limit: query + reach must not overflow
OTHER_REGISTERS = gl.constexpr(24)


@gluon.jit(do_not_specialize=[*NOT_SPECIALISED, "n_key_heads", "set_heads", "scale"])
def attention_hopper_backward_kernel(
    q_first, q_rest, k_first, k_rest, v_first, v_rest, doutput_first, doutput_rest, statistics,
    dq_first, dq_rest, dk_first, dk_rest, dv_first, dv_rest, sums_first, sums_rest, sums_ptr, counters_ptr,
    n_heads, group, query_rows, key_rows, right, n_key_heads, set_heads, n_parts, scale,
    FIRST: gl.constexpr, REST: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr, ASCENDING: gl.constexpr,
):  # fmt: skip
    """Compute dq, dk and dv. q_first … sums_rest are TMA descriptors; `Sizes` explains the numbers.

    The boxes are QUERIES queries for q, doutput and statistics, and ROWS keys for k, v, dk and dv. dq and the sums have
    a descriptor for each warpgroup: the box is its tile. `n_parts`: parts into which a GQA group is split. Each part
    has heads of dk and dv of its own, which another kernel adds up.
    """
    FORM: gl.constexpr = form(FIRST, REST, QUERIES, STAGES, ASCENDING)
    query_tiles = allocate_heads(q_first, q_rest, 2 * STAGES, QUERIES, FORM)  # q and do in turn
    key_tiles = allocate_heads(k_first, k_rest, 2 * GROUPS, ROWS, FORM)  # keys, then values
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_tiles = gl.allocate_shared_memory(q_first.dtype, [2 * GROUPS, ROWS, QUERIES], DS_LAYOUT)
    dq_tiles = (allocate_dq(sums_first, 0, FORM), allocate_dq(sums_rest, 1, FORM))
    statistics_tiles = gl.allocate_shared_memory(gl.float32, [2 * STAGES, 1, QUERIES], statistics.layout)
    signals = gl.allocate_shared_memory(gl.int64, [SLOTS + 3 * STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(signals.index(KEYS_READY), count=1)
    mbarrier.init(signals.index(DS_READY), count=GROUPS)
    mbarrier.init(signals.index(DONE), count=GROUPS)
    mbarrier.init(signals.index(DQ_READY), count=GROUPS)
    mbarrier.init(signals.index(DQ_FREE), count=1)
    for i in gl.static_range(2):
        mbarrier.init(signals.index(MAY_ADD + i), count=1)
        mbarrier.init(signals.index(COUNTED + i), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(signals.index(SLOTS + slot), count=1)
        mbarrier.init(signals.index(SLOTS + STAGES + slot), count=1)
        mbarrier.init(signals.index(SLOTS + 2 * STAGES + slot), count=GROUPS)
    fence_async_shared()
    tiles = SharedTiles(query_tiles, key_tiles, ds_tiles, dq_tiles, statistics_tiles)
    sizes = Sizes(n_heads, group, query_rows, key_rows, right, n_key_heads, set_heads)
    q, doutput = HeadTiles(q_first, q_rest), HeadTiles(doutput_first, doutput_rest)
    k, v = HeadTiles(k_first, k_rest), HeadTiles(v_first, v_rest)
    dk, dv = HeadTiles(dk_first, dk_rest), HeadTiles(dv_first, dv_rest)
    dq, sums = (dq_first, dq_rest), (sums_first, sums_rest)
    fetched = (q, k, v, doutput, statistics)
    gl.warp_specialize(
        [
            (differentiate, (sums_ptr, dq, tiles, signals, sizes, scale, FORM, 0)),
            (differentiate, (sums_ptr, dq, tiles, signals, sizes, scale, FORM, 1)),
            (fetch_tiles, (fetched, tiles, signals, sizes, n_parts, FORM)),
            (poll_counters, (counters_ptr, signals, sizes, FORM)),
            (add_and_store, (dq, dk, dv, sums, counters_ptr, tiles, signals, sizes, FORM)),
        ],
        [GROUP_WARPS, 1, 1, 1],
        [REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS],
    )


@gluon.jit
def differentiate(sums_ptr, dq_descriptors, tiles, signals, sizes, scale, FORM: gl.constexpr, PART: gl.constexpr):
    """Run a consumer warpgroup: dk and dv of its keys, and its tile of each block's dq, from all 128 keys."""
    QUERIES: gl.constexpr = FORM.QUERIES
    STAGES: gl.constexpr = FORM.STAGES
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST or FIRST  # unused where a head is one tile
    TILES: gl.constexpr = 2 if FORM.REST else 1
    DTYPE: gl.constexpr = tiles.queries.first.dtype
    SCORES: gl.constexpr = products_layout(QUERIES)
    BLOCKS: gl.constexpr = QUERIES // BLOCK
    BLOCK_OF_SCORES: gl.constexpr = products_layout(BLOCK)
    PLACE: gl.constexpr = place_in_dq(PART, FORM.FIRST, FORM.REST)
    COLUMNS: gl.constexpr = PLACE.columns
    DQ: gl.constexpr = products_layout(COLUMNS)
    work = work_of_program(sizes, FORM)
    # At least one, because the last query sees the last key. Without this maximum the compiler reserves registers.
    total = gl.maximum(work.n_blocks * sizes.group, 1)
    # Relative to this warpgroup's first key: the last key that query 0 sees, and the last key.
    start = work.block * KEYS + PART * ROWS
    reach = gl.minimum(sizes.key_rows - sizes.query_rows + sizes.right - start, LARGE)
    last_key = sizes.key_rows - 1 - start

    dk = gl.zeros([ROWS, FIRST], gl.float32, products_layout(FIRST))  # [ROWS, FIRST]
    dv = gl.zeros([ROWS, FIRST], gl.float32, products_layout(FIRST))  # [ROWS, FIRST]
    dk_rest = gl.zeros([ROWS, REST], gl.float32, products_layout(REST))  # [ROWS, REST]
    dv_rest = gl.zeros([ROWS, REST], gl.float32, products_layout(REST))  # [ROWS, REST]
    mbarrier.wait(signals.index(KEYS_READY), 0)
    k = rows_of_head(tiles.keys, PART, ROWS, FORM)
    started = start_scores(k, tiles.queries, signals, 0, total, SCORES, FORM)
    scores = warpgroup_mma_wait(0, deps=[started])  # [ROWS, QUERIES]
    query = work.first_block * QUERIES
    for n in range(total):
        slot = n % STAGES
        zero = hidden_zero()  # keeps the addresses of tiles in the loop, out of registers
        # In shared memory: q and do of QUERIES rows, k and v of ROWS.
        q = rows_of_head(tiles.queries, 2 * slot, QUERIES, FORM)
        do = rows_of_head(tiles.queries, 2 * slot + 1, QUERIES, FORM)
        k = rows_of_head(tiles.keys, PART + zero, ROWS, FORM)
        v = rows_of_head(tiles.keys, GROUPS + PART + zero, ROWS, FORM)
        lse, delta = tiles.statistics.index(2 * slot), tiles.statistics.index(2 * slot + 1)
        ds_tile = tiles.ds.index(n % 2 * GROUPS + PART)
        parts = halves(scores) if BLOCKS == 2 else (scores,)
        dscores = ()
        mbarrier.wait(signals.index(SLOTS + STAGES + slot), n // STAGES % 2)
        for block in gl.static_range(BLOCKS):
            do_block = block_of(do, block, FORM)
            dweights = start_dweights(v, do_block, delta, block * BLOCK, BLOCK_OF_SCORES, FORM)  # [ROWS, BLOCK]
            weights = gl.exp2(parts[block] * (scale * LOG2_E) - statistics_of(lse, block * BLOCK, BLOCK_OF_SCORES))
            if gl.minimum(query + block * BLOCK + reach, last_key) < ROWS - 1:  # not every query sees every key
                weights = only_seen(weights, query + block * BLOCK + reach, last_key, BLOCK_OF_SCORES)
            dv, dv_rest = start_sum(weights.to(DTYPE), do_block, dv, dv_rest, FORM)
            dweights = warpgroup_mma_wait(TILES, deps=[dweights])
            rounded = (weights * dweights).to(DTYPE)  # [ROWS, BLOCK]
            ds_tile.slice(block * BLOCK, BLOCK, dim=1).store(rounded)
            dscores = dscores + (rounded,)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
        fence_async_shared()
        mbarrier.arrive(signals.index(DS_READY), count=1)
        # As `turn_of` counts: adds_first if no program adds before this one, adds_last if none adds after it.
        sees_no_later = gl.minimum(query + QUERIES - 1 + reach, last_key) < KEYS - PART * ROWS
        adds_first = work.block == 0 if FORM.ASCENDING else sees_no_later
        adds_last = sees_no_later if FORM.ASCENDING else work.block == 0
        dq = gl.zeros([DQ_ROWS, COLUMNS], gl.float32, DQ)  # [DQ_ROWS, COLUMNS]
        if adds_last & (not adds_first):  # reads the sum now: later there are no registers for it
            mbarrier.wait(signals.index(MAY_ADD + n % 2), n // 2 % 2)
            tile = gl.cast(tile_of_sums(sizes, work, n), gl.int64) * (QUERIES * (FIRST + FORM.REST))
            dq = sum_so_far(sums_ptr + tile + PART * (DQ_ROWS * DQ_COLUMNS), COLUMNS, DQ)
        mbarrier.wait(signals.index(DS_READY), n % 2)
        for part in gl.static_range(GROUPS):
            ds = tiles.ds.index(n % 2 * GROUPS + part)
            keys = rows_of_head(tiles.keys, part + zero, ROWS, FORM)
            ds = ds.slice(PLACE.row, DQ_ROWS, dim=1).permute([1, 0])  # [DQ_ROWS, ROWS] in shared memory
            # [ROWS, COLUMNS] in shared memory
            columns = keys.rest if PLACE.column == FIRST else keys.first.slice(PLACE.column, COLUMNS, dim=1)
            dq = warpgroup_mma(ds, columns, dq, is_async=True)
        for block in gl.static_range(BLOCKS):
            dk, dk_rest = start_sum(dscores[block], block_of(q, block, FORM), dk, dk_rest, FORM)
        if FORM.REST:
            dq, dv, dv_rest = warpgroup_mma_wait(BLOCKS * TILES, deps=[dq, dv, dv_rest])
        else:
            dq, dv = warpgroup_mma_wait(BLOCKS, deps=[dq, dv])
        mbarrier.wait(signals.index(DQ_FREE), (n + 1) % 2)
        if adds_last:
            rounded_dq = in_half_precision(tiles, PART, dq_descriptors, FORM).reshape([DQ_ROWS, COLUMNS])
            rounded_dq.store((dq * scale).to(DTYPE))
        else:
            tiles.dq[PART].index(zero).store(in_order_of_sum(dq))
        fence_async_shared()
        thread_barrier()
        mbarrier.arrive(signals.index(DQ_READY), count=1)
        started = start_scores(k, tiles.queries, signals, n + 1, total, SCORES, FORM)
        if FORM.REST:
            dk, dk_rest, scores = warpgroup_mma_wait(0, deps=[dk, dk_rest, started])
        else:
            dk, scores = warpgroup_mma_wait(0, deps=[dk, started])
        mbarrier.arrive(signals.index(SLOTS + 2 * STAGES + slot), count=1)
        query += QUERIES
        if query >= sizes.query_rows:  # on to the next head
            query = work.first_block * QUERIES

    # The other warpgroup reads this one's keys until it arrives too. Only this one reads its values: dv needs no wait.
    mbarrier.arrive(signals.index(DS_READY), count=1)
    round_into(tiles.keys, GROUPS + PART, dv, dv_rest, FORM)
    mbarrier.wait(signals.index(DS_READY), total % 2)
    round_into(tiles.keys, PART, dk * scale, dk_rest * scale, FORM)
    fence_async_shared()
    thread_barrier()
    mbarrier.arrive(signals.index(DONE), count=1)


@gluon.jit
def start_scores(k, query_tiles, signals, n, total, SCORES: gl.constexpr, FORM: gl.constexpr):
    """Start the scores of the n-th block of queries. For n = total, those of the last block again: nobody uses them."""
    n = gl.minimum(n, total - 1)
    slot = n % FORM.STAGES
    QUERIES: gl.constexpr = FORM.QUERIES
    mbarrier.wait(signals.index(SLOTS + slot), n // FORM.STAGES % 2)
    q = rows_of_head(query_tiles, 2 * slot, QUERIES, FORM)
    no_scores = gl.zeros([ROWS, QUERIES], gl.float32, SCORES)
    return start_product(k, q, no_scores, False, FORM)  # [ROWS, QUERIES]


@gluon.jit
def halves(scores):
    """Return the scores of the first and of the second BLOCK queries: [ROWS, BLOCK] each."""
    LAYOUT: gl.constexpr = products_layout(BLOCK)
    first, second = gl.split(scores.reshape([ROWS, 2, BLOCK]).permute([0, 2, 1]))
    first = gl.convert_layout(first, LAYOUT, assert_trivial=True)
    return first, gl.convert_layout(second, LAYOUT, assert_trivial=True)


@gluon.jit
def statistics_of(tile, FIRST_QUERY: gl.constexpr, LAYOUT: gl.constexpr):
    """Load lse or δ of BLOCK queries as a row for this layout: [1, BLOCK]."""
    return tile.reshape([tile.shape[1]]).slice(FIRST_QUERY, BLOCK).load(gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def block_of(head, BLOCK_INDEX: gl.constexpr, FORM: gl.constexpr):
    """Return BLOCK rows of q or do in shared memory."""
    first = head.first.slice(BLOCK_INDEX * BLOCK, BLOCK)
    rest = head.rest.slice(BLOCK_INDEX * BLOCK, BLOCK) if FORM.REST else first
    return HeadTiles(first, rest)


@gluon.jit
def start_dweights(v, do, delta, FIRST_QUERY: gl.constexpr, LAYOUT: gl.constexpr, FORM: gl.constexpr):
    """Start v · doᵀ − δ for BLOCK queries: [ROWS, BLOCK]. To subtract δ later would take registers."""
    start = gl.zeros([ROWS, BLOCK], gl.float32, LAYOUT) - statistics_of(delta, FIRST_QUERY, LAYOUT)
    return start_product(v, do, start, True, FORM)


@gluon.jit
def only_seen(weights, reach, last_key, LAYOUT: gl.constexpr):
    """Return the weights with zeros where a query does not see the key. The first query sees keys up to `reach`.

    A thread's column is a number below 8 plus a multiple of 8. The multiples are constants, so that only the rest of
    the comparison is in registers.
    """
    keys = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))  # [ROWS]
    queries = gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))  # [BLOCK]
    ahead = gl.where(keys <= last_key, keys - reach, LARGE)  # [ROWS]
    # [ROWS, BLOCK]
    seen = ahead[:, None] - (queries & 7)[None, :] <= (queries & (BLOCK - 8))[None, :]
    return gl.where(seen, weights, 0.0)
