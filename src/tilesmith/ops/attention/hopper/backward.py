"""The backward kernel for long sequences on Hopper: same computation as `kernels/backward.py` (read that first).

`backward_plan.py` says when this kernel runs: half precision, heads of 64 or 128, no bias, mask, window, softcap or
dropout.

The portable backward has two kernels, which both compute weights and their gradients: seven products. This kernel needs
five. A program has 128 keys and walks along the queries that see them. dk and dv stay in registers. The program adds
its part of dq to a sum in memory, in single precision. Gradients must be the same bits at every run, so the programs of
a head add to each block of queries in a fixed order. The first stores, and the last reads the sum, scales, rounds and
stores dq. A counter for each block of queries holds how many programs have added.

The order is that of program numbers, so there is no deadlock: a program waits only for programs of lower numbers, which
the GPU starts first. From the last keys to the first, waits are short too: under a causal mask, programs of later keys
begin at a later block of queries, and have left a block when programs of earlier keys arrive. But programs of the last
keys have the fewest queries, and starting long programs last idles the GPU, more so with larger GQA groups. With GQA
the order is from the first keys to the last: ASCENDING.

Two consumer warpgroups have 64 keys each, and scores are transposed: one row per key. Then weights and ds lie in
registers as the left operands of the products with do and q. ds also goes to shared memory, where both warpgroups read
all of it, and each computes half the columns of dq. One warp loads by TMA, one waits for this program's turn to add,
one counts and stores: the warpgroups have no registers left for addresses.

b4 h32 s4096 d128 on an H200 at its power limit: 484 TFLOP/s, causal 498; the portable kernels reach 394 and 358.
b8 h32 s2048 d64: 442 and 377; the portable kernels reach 374 and 312.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.attention.device.tiles import NOT_SPECIALISED
from tilesmith.ops.attention.hopper.dq_sums import add_to_sum, sum_so_far
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import GROUP_WARPS, hidden_zero
from tilesmith.toolchain.gluon import fetch, put, thread_barrier

GROUPS = gl.constexpr(2)  # consumer warpgroups
ROWS = gl.constexpr(64)  # keys of a warpgroup
KEYS = gl.constexpr(128)  # of a program
QUERIES = gl.constexpr(64)  # at a time
REGISTERS = gl.constexpr(240)  # per thread of a consumer warpgroup; the other warps give up theirs
OTHER_REGISTERS = gl.constexpr(24)

# The mbarriers by their index in `signals`: a tensor for each kind would take a register. Pairs are used in turn.
KEYS_READY = gl.constexpr(0)
DS_READY = gl.constexpr(1)
DONE = gl.constexpr(2)  # dk and dv are in the buffers of keys and values
MAY_ADD = gl.constexpr(3)  # two: it is this program's turn to add
ADDED = gl.constexpr(5)  # two: both warpgroups have added, or dq is in shared memory
COUNTED = gl.constexpr(7)  # two: the counter is up, or dq is stored
SLOTS = gl.constexpr(9)  # per stage: q is loaded; then per stage: do is loaded; then per stage: both are free


class Sizes(NamedTuple):
    """The sizes of a call."""

    n_heads: Any  # of queries
    group: Any  # query heads per key head, or per part of one
    query_rows: Any
    key_rows: Any
    right: Any  # keys that a query sees after its own place
    n_key_heads: Any  # of all sequences
    set_heads: Any  # key heads whose programs run at the same time


class SharedTiles(NamedTuple):
    """The tiles in shared memory. Their first axis counts them."""

    queries: Any  # [2 · STAGES, QUERIES, HEAD]: q and do of each stage
    keys: Any  # [2 · GROUPS, ROWS, HEAD]: keys of each warpgroup, then values; at the end dk and dv
    ds: Any  # [2 · GROUPS, ROWS, QUERIES]: two turns
    dq: Any  # [2 · GROUPS, QUERIES, HEAD / 2]: two turns
    statistics: Any  # [2 · STAGES, QUERIES]: lse and δ of each stage


class Work(NamedTuple):
    """The work of one program."""

    sequence: Any
    key_head: Any  # of the sequence
    block: Any  # of KEYS keys
    first_block: Any  # the first block of queries that sees the keys
    n_blocks: Any  # blocks of queries from there on


@gluon.jit(do_not_specialize=[*NOT_SPECIALISED, "n_key_heads", "set_heads", "scale"])
def attention_hopper_backward_kernel(
    q, k, v, doutput, statistics, dq, dk, dv, sums_ptr, counters_ptr,
    n_heads, group, query_rows, key_rows, right, n_key_heads, set_heads, n_parts, scale,
    HEAD: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, ASCENDING: gl.constexpr,
):  # fmt: skip
    """Compute dq, dk and dv. All arguments but the pointers are descriptors.

    Their blocks are QUERIES queries for q, doutput and statistics, half the columns of as many for dq, and ROWS keys
    for the others. EARLY: the products of the next scores start before those of dq; heads of 128 have no registers for
    that.
    """
    query_tiles = gl.allocate_shared_memory(q.dtype, [2 * STAGES, 1, 1, QUERIES, HEAD], q.layout)  # q and do in turn
    key_tiles = gl.allocate_shared_memory(k.dtype, [2 * GROUPS, 1, 1, ROWS, HEAD], k.layout)  # keys, then values
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_tiles = gl.allocate_shared_memory(q.dtype, [2 * GROUPS, ROWS, QUERIES], DS_LAYOUT)
    dq_tiles = gl.allocate_shared_memory(q.dtype, [2 * GROUPS, 1, 1, QUERIES, HEAD // 2], dq.layout)
    statistics_tiles = gl.allocate_shared_memory(gl.float32, [2 * STAGES, 1, QUERIES], statistics.layout)
    signals = gl.allocate_shared_memory(gl.int64, [SLOTS + 3 * STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(signals.index(KEYS_READY), count=1)
    mbarrier.init(signals.index(DS_READY), count=GROUPS)
    mbarrier.init(signals.index(DONE), count=GROUPS)
    for i in gl.static_range(2):
        mbarrier.init(signals.index(MAY_ADD + i), count=1)
        mbarrier.init(signals.index(ADDED + i), count=GROUPS)
        mbarrier.init(signals.index(COUNTED + i), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(signals.index(SLOTS + slot), count=1)
        mbarrier.init(signals.index(SLOTS + STAGES + slot), count=1)
        mbarrier.init(signals.index(SLOTS + 2 * STAGES + slot), count=GROUPS)
    fence_async_shared()
    tiles = SharedTiles(query_tiles, key_tiles, ds_tiles, dq_tiles, statistics_tiles)
    sizes = Sizes(n_heads, group, query_rows, key_rows, right, n_key_heads, set_heads)
    fetched = (q, k, v, doutput, statistics)
    gl.warp_specialize(
        [
            (differentiate, (sums_ptr, tiles, signals, sizes, scale, HEAD, STAGES, EARLY, ASCENDING, 0)),
            (differentiate, (sums_ptr, tiles, signals, sizes, scale, HEAD, STAGES, EARLY, ASCENDING, 1)),
            (fetch_tiles, (fetched, tiles, signals, sizes, n_parts, HEAD, STAGES, ASCENDING)),
            (await_turns, (counters_ptr, signals, sizes, ASCENDING)),
            (pass_on, (dq, dk, dv, counters_ptr, tiles, signals, sizes, HEAD, ASCENDING)),
        ],
        [GROUP_WARPS, 1, 1, 1],
        [REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS],
    )


@gluon.jit
def work_of_program(sizes, ASCENDING: gl.constexpr):
    """Return the work of this program.

    Programs that run at the same time have the first, or the last, blocks of a set of heads. A set has enough heads
    that few programs wait for each other, and few enough that their queries stay in the L2 cache. The program with the
    first keys visits all queries: some may see no key, and their dq is zero.
    """
    key_blocks = (sizes.key_rows + KEYS - 1) // KEYS
    program = gl.program_id(0)
    first_head = program // (sizes.set_heads * key_blocks) * sizes.set_heads
    heads_here = gl.minimum(sizes.set_heads, sizes.n_key_heads - first_head)
    place = program % (sizes.set_heads * key_blocks)
    block = place // heads_here if ASCENDING else key_blocks - 1 - place // heads_here
    key_head = first_head + place % heads_here
    key_heads = sizes.n_heads // sizes.group
    query_blocks = (sizes.query_rows + QUERIES - 1) // QUERIES
    first_block = gl.maximum(block * KEYS - (sizes.key_rows - sizes.query_rows) - sizes.right, 0) // QUERIES
    if block == 0:
        first_block = 0
    return Work(key_head // key_heads, key_head % key_heads, block, first_block, query_blocks - first_block)


@gluon.jit
def last_block_seen(query, sizes):
    """Return the last block of keys that any of QUERIES queries from `query` on sees; 0 if they see none."""
    last_key = gl.minimum(query + QUERIES - 1 + (sizes.key_rows - sizes.query_rows) + sizes.right, sizes.key_rows - 1)
    return gl.maximum(last_key, 0) // KEYS


@gluon.jit
def fetch_tiles(
    fetched, tiles, signals, sizes, n_parts, HEAD: gl.constexpr, STAGES: gl.constexpr, ASCENDING: gl.constexpr
):  # fmt: skip
    """Run the producer warp: load keys and values by TMA, then q, do, lse and δ of every head of the group."""
    q, k, v, doutput, statistics = fetched
    work = work_of_program(sizes, ASCENDING)
    keys_ready = signals.index(KEYS_READY)
    mbarrier.expect(keys_ready, 2 * KEYS * HEAD * 2)
    for part in gl.static_range(GROUPS):
        corner = [work.sequence, work.key_head // n_parts, work.block * KEYS + part * ROWS, 0]
        fetch(k, corner, keys_ready, tiles.keys.index(part))
        fetch(v, corner, keys_ready, tiles.keys.index(GROUPS + part))
    for n in range(work.n_blocks * sizes.group):
        slot = n % STAGES
        head = work.key_head * sizes.group + n // work.n_blocks
        query = (work.first_block + n % work.n_blocks) * QUERIES
        row = (work.sequence * sizes.n_heads + head) * 2  # of statistics: lse, and below it δ
        mbarrier.wait(signals.index(SLOTS + 2 * STAGES + slot), (n // STAGES + 1) % 2)
        ready = signals.index(SLOTS + slot)
        mbarrier.expect(ready, QUERIES * (HEAD * 2 + 4))
        fetch(q, [work.sequence, head, query, 0], ready, tiles.queries.index(2 * slot))
        fetch(statistics, [row, query], ready, tiles.statistics.index(2 * slot))
        ready = signals.index(SLOTS + STAGES + slot)
        mbarrier.expect(ready, QUERIES * (HEAD * 2 + 4))
        fetch(doutput, [work.sequence, head, query, 0], ready, tiles.queries.index(2 * slot + 1))
        fetch(statistics, [row + 1, query], ready, tiles.statistics.index(2 * slot + 1))


@gluon.jit
def visit(counters_ptr, sizes, n, ASCENDING: gl.constexpr):
    """Return the counter of the n-th block of queries, and how many programs add before this one and after it."""
    work = work_of_program(sizes, ASCENDING)
    head = work.sequence * sizes.n_heads + work.key_head * sizes.group + n // work.n_blocks
    query_block = work.first_block + n % work.n_blocks
    query_blocks = (sizes.query_rows + QUERIES - 1) // QUERIES
    others = last_block_seen(query_block * QUERIES, sizes) - work.block
    before = work.block if ASCENDING else others
    return counters_ptr + head * query_blocks + query_block, before, work.block + others - before


@gluon.jit
def await_turns(counters_ptr, signals, sizes, ASCENDING: gl.constexpr):
    """Run the warp that polls the counters: signal the warpgroups when all earlier programs have added."""
    work = work_of_program(sizes, ASCENDING)
    for n in range(work.n_blocks * sizes.group):
        counter, before, _after = visit(counters_ptr, sizes, n, ASCENDING)
        mbarrier.wait(signals.index(COUNTED + n % 2), (n // 2 + 1) % 2)
        counted = 0
        while counted < before:
            counted = gl.inline_asm_elementwise(
                "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l,~{memory}",
                [gl.cast(counter, gl.int64, bitcast=True)], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        mbarrier.arrive(signals.index(MAY_ADD + n % 2), count=1)


@gluon.jit
def pass_on(
    dq, dk, dv, counters_ptr, tiles, signals, sizes, HEAD: gl.constexpr, ASCENDING: gl.constexpr
):  # fmt: skip
    """Run the warp that counts: raise the counter when both warpgroups have added. The last program stores dq instead.

    At the end it stores dk and dv.
    """
    work = work_of_program(sizes, ASCENDING)
    for n in range(work.n_blocks * sizes.group):
        counter, before, after = visit(counters_ptr, sizes, n, ASCENDING)
        mbarrier.wait(signals.index(ADDED + n % 2), n // 2 % 2)
        if after > 0:
            gl.inline_asm_elementwise(
                "fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [$1], $2; mov.b32 $0, 0;", "=r,l,r,~{memory}",
                [gl.cast(counter, gl.int64, bitcast=True), before + 1], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            query = (work.first_block + n % work.n_blocks) * QUERIES
            for part in gl.static_range(GROUPS):
                corner = [work.sequence, work.key_head * sizes.group + n // work.n_blocks, query, part * (HEAD // 2)]
                put(dq, corner, tiles.dq.index(n % 2 * GROUPS + part))
            tma.store_wait(0)
        mbarrier.arrive(signals.index(COUNTED + n % 2), count=1)
    mbarrier.wait(signals.index(DONE), 0)
    for part in gl.static_range(GROUPS):
        corner = [work.sequence, work.key_head, work.block * KEYS + part * ROWS, 0]
        put(dk, corner, tiles.keys.index(part))
        put(dv, corner, tiles.keys.index(GROUPS + part))
    tma.store_wait(0)


@gluon.jit
def differentiate(
    sums_ptr, tiles, signals, sizes, scale,
    HEAD: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, ASCENDING: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Run a consumer warpgroup: dk and dv of its keys, and half the columns of each block's dq, from all 128 keys."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, QUERIES, 16])
    GRADIENT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, HEAD, 16])
    HALF: gl.constexpr = HEAD // 2
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, HALF, 16])
    work = work_of_program(sizes, ASCENDING)
    # At least one, because the last query sees the last key. Without this maximum the compiler reserves registers.
    total = gl.maximum(work.n_blocks * sizes.group, 1)
    # Relative to this warpgroup's first key: the last key that query 0 sees, and the last key.
    start = work.block * KEYS + PART * ROWS
    reach = gl.minimum(sizes.key_rows - sizes.query_rows + sizes.right - start, 1 << 29)
    last_key = sizes.key_rows - 1 - start

    dk = gl.zeros([ROWS, HEAD], gl.float32, GRADIENT)  # [ROWS, HEAD]
    dv = gl.zeros([ROWS, HEAD], gl.float32, GRADIENT)  # [ROWS, HEAD]
    mbarrier.wait(signals.index(KEYS_READY), 0)
    k = tiles.keys.index(PART).reshape([ROWS, HEAD])  # [ROWS, HEAD] in shared memory
    started = start_scores(k, tiles.queries, signals, 0, total, SCORES, HEAD, STAGES)
    scores = warpgroup_mma_wait(0, deps=[started])  # [ROWS, QUERIES]
    query = work.first_block * QUERIES
    SUM: gl.constexpr = QUERIES * HALF  # what a warpgroup has of one
    # The first block of queries, counted through all heads.
    head = work.sequence * sizes.n_heads + work.key_head * sizes.group
    tile = head * (work.first_block + work.n_blocks) + work.first_block
    sum_ptr = sums_ptr + (gl.cast(tile, gl.int64) * GROUPS + PART) * SUM
    for n in range(total):
        slot = n % STAGES
        zero = hidden_zero()
        # In shared memory: q and do [QUERIES, HEAD], k and v [ROWS, HEAD].
        q = tiles.queries.index(2 * slot).reshape([QUERIES, HEAD])
        do = tiles.queries.index(2 * slot + 1).reshape([QUERIES, HEAD])
        k = tiles.keys.index(PART + zero).reshape([ROWS, HEAD])
        v = tiles.keys.index(GROUPS + PART + zero).reshape([ROWS, HEAD])
        mbarrier.wait(signals.index(SLOTS + STAGES + slot), n // STAGES % 2)
        no_scores = gl.zeros([ROWS, QUERIES], gl.float32, SCORES)
        # [ROWS, QUERIES] each; lse and δ are [1, QUERIES].
        dweights = warpgroup_mma(v, do.permute([1, 0]), no_scores, use_acc=False, is_async=True)
        weights = gl.exp2(scores * (scale * LOG2_E) - tiles.statistics.index(2 * slot).load(SCORES))
        if gl.minimum(query + reach, last_key) < ROWS - 1:  # not every query sees every key
            weights = only_seen(weights, query + reach, last_key, SCORES)
        operand = gl.convert_layout(weights.to(tiles.queries.dtype), gl.DotOperandLayout(0, GRADIENT, 2))
        dv = warpgroup_mma(operand, do, dv, is_async=True)  # [ROWS, HEAD]
        dweights = warpgroup_mma_wait(1, deps=[dweights])
        dscores = weights * (dweights - tiles.statistics.index(2 * slot + 1).load(SCORES))
        dscores = dscores.to(tiles.queries.dtype)  # [ROWS, QUERIES]
        tiles.ds.index(n % 2 * GROUPS + PART).store(dscores)
        fence_async_shared()
        mbarrier.arrive(signals.index(DS_READY), count=1)
        operand = gl.convert_layout(dscores, gl.DotOperandLayout(0, GRADIENT, 2))
        dk = warpgroup_mma(operand, q, dk, is_async=True)  # [ROWS, HEAD]
        if EARLY:
            started = start_scores(k, tiles.queries, signals, n + 1, total, SCORES, HEAD, STAGES)
        mbarrier.wait(signals.index(DS_READY), n % 2)
        sees_no_later = gl.minimum(query + QUERIES - 1 + reach, last_key) < KEYS - PART * ROWS
        adds_first = work.block == 0 if ASCENDING else sees_no_later
        adds_last = sees_no_later if ASCENDING else work.block == 0
        dq = gl.zeros([QUERIES, HALF], gl.float32, DQ)  # [QUERIES, HALF]
        if adds_last & (not adds_first):  # reads the sum now: later there are no registers for it
            mbarrier.wait(signals.index(MAY_ADD + n % 2), n // 2 % 2)
            dq = sum_so_far(sum_ptr, DQ, HALF)
        for part in gl.static_range(GROUPS):
            ds = tiles.ds.index(n % 2 * GROUPS + part).permute([1, 0])  # [QUERIES, ROWS] in shared memory
            # [ROWS, HALF] in shared memory
            columns = tiles.keys.index(part + zero).reshape([ROWS, HEAD]).slice(PART * HALF, HALF, dim=1)
            dq = warpgroup_mma(ds, columns, dq, is_async=True)
        if EARLY:
            dq, dk, dv, scores = warpgroup_mma_wait(0, deps=[dq, dk, dv, started])
        else:
            dq, dk, dv = warpgroup_mma_wait(0, deps=[dq, dk, dv])
            started = start_scores(k, tiles.queries, signals, n + 1, total, SCORES, HEAD, STAGES)
        mbarrier.arrive(signals.index(SLOTS + 2 * STAGES + slot), count=1)
        mbarrier.wait(signals.index(MAY_ADD + n % 2), n // 2 % 2)
        if not adds_last:
            add_to_sum(sum_ptr, dq, adds_first, HALF)
        else:
            tiles.dq.index(n % 2 * GROUPS + PART).reshape([QUERIES, HALF]).store((dq * scale).to(tiles.queries.dtype))
            fence_async_shared()
        thread_barrier()
        mbarrier.arrive(signals.index(ADDED + n % 2), count=1)
        if not EARLY:
            scores = warpgroup_mma_wait(0, deps=[started])
        query += QUERIES
        sum_ptr += GROUPS * SUM
        if query >= sizes.query_rows:  # on to the next head
            query = work.first_block * QUERIES
            sum_ptr += work.first_block * (GROUPS * SUM)

    # The other warpgroup may still read this one's keys until it arrives here too.
    mbarrier.arrive(signals.index(DS_READY), count=1)
    tiles.keys.index(GROUPS + PART).reshape([ROWS, HEAD]).store(dv.to(tiles.queries.dtype))
    mbarrier.wait(signals.index(DS_READY), total % 2)
    tiles.keys.index(PART).reshape([ROWS, HEAD]).store((dk * scale).to(tiles.queries.dtype))
    fence_async_shared()
    thread_barrier()
    mbarrier.arrive(signals.index(DONE), count=1)


@gluon.jit
def start_scores(
    k, query_tiles, signals, n, total, SCORES: gl.constexpr, HEAD: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Start the products with the n-th block of queries. After the last block the result is unused."""
    slot = n % STAGES
    mbarrier.wait(signals.index(SLOTS + slot), n // STAGES % 2, pred=n < total)
    q = query_tiles.index(2 * slot).reshape([QUERIES, HEAD])  # [QUERIES, HEAD] in shared memory
    no_scores = gl.zeros([ROWS, QUERIES], gl.float32, SCORES)
    return warpgroup_mma(k, q.permute([1, 0]), no_scores, use_acc=False, is_async=True)  # [ROWS, QUERIES]


@gluon.jit
def only_seen(weights, reach, last_key, SCORES: gl.constexpr):
    """Return the weights with zeros where a query does not see the key. The first query sees keys up to `reach`.

    Multiples of eight columns are the same for all threads. Compared as constants, they take no registers.
    """
    keys = gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))  # [ROWS]
    queries = gl.arange(0, QUERIES, gl.SliceLayout(0, SCORES))  # [QUERIES]
    ahead = gl.where(keys <= last_key, keys - reach, 1 << 29)  # [ROWS]
    # [ROWS, QUERIES]
    seen = ahead[:, None] - (queries & 7)[None, :] <= (queries & (QUERIES - 8))[None, :]
    return gl.where(seen, weights, 0.0)
