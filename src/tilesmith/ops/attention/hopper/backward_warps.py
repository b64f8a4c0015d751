"""The warps of `backward.py` that move data: one loads, one polls for the turn to add dq, one adds and stores.

Also what they share with the warpgroups that compute: the tiles, the barriers, and the work of a program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilesmith.ops.attention.hopper.dq_sums import DQ_COLUMNS, DQ_ROWS, SUM_COLUMNS, sum_rows
from tilesmith.ops.attention.hopper.head_tiles import HeadTiles, put_head, start_fetching
from tilesmith.ops.device.hopper import fence_of_proxies, wait_until_written
from tilesmith.toolchain.gluon import add, fetch, put, reinterpreted, thread_barrier

GROUPS = gl.constexpr(2)  # consumer warpgroups
ROWS = gl.constexpr(64)  # keys of a warpgroup
KEYS = gl.constexpr(128)  # of a program

# The mbarriers by their index in `signals`: a tensor for each kind would take a register. Of two, the n-th block uses
# number n % 2.
KEYS_READY = gl.constexpr(0)  # keys and values are loaded
DS_READY = gl.constexpr(1)  # both warpgroups have stored ds; after the loop: neither reads the keys any more
DONE = gl.constexpr(2)  # dk and dv are in the buffers of keys and values
MAY_ADD = gl.constexpr(3)  # two: all programs before this one have added
COUNTED = gl.constexpr(5)  # two: the counter is up, or dq is stored
DQ_READY = gl.constexpr(7)  # both warpgroups have their part of dq in shared memory
DQ_FREE = gl.constexpr(8)  # TMA has read dq
SLOTS = gl.constexpr(9)  # per stage: q and lse are loaded; then per stage: do and δ are; then per stage: all are free


class Sizes(NamedTuple):
    """The sizes of a call."""

    n_heads: Any  # query heads of a sequence
    group: Any  # query heads per key head, or per part of one
    query_rows: Any
    key_rows: Any
    right: Any  # keys after its own place that a query sees; 2³⁰ for no limit
    n_key_heads: Any  # of all sequences and parts
    set_heads: Any  # key heads whose programs have neighbouring numbers


class Form(NamedTuple):
    """The compile-time constants of the kernel."""

    FIRST: int  # columns of a head's first tile
    REST: int  # and of its second, or zero
    QUERIES: int  # of a block: 128 for heads in one tile of 64, else 64
    STAGES: int  # blocks of queries in the ring
    ASCENDING: bool


@gluon.constexpr_function
def form(first, rest, queries, stages, ascending):
    return Form(first, rest, queries, stages, ascending)


class SharedTiles(NamedTuple):
    """The tiles in shared memory. Their first axis counts them."""

    queries: HeadTiles  # [2 · STAGES, QUERIES, columns]: q and do of each stage
    keys: HeadTiles  # [2 · GROUPS, ROWS, columns]: keys of each warpgroup, then values; at the end dk and dv
    ds: Any  # [2 · GROUPS, ROWS, QUERIES]: two turns
    dq: Any  # of each warpgroup [1, rows, SUM_COLUMNS]: float32 to be added, or the rounded result of the last program
    statistics: Any  # [2 · STAGES, QUERIES]: lse and δ of each stage


class Work(NamedTuple):
    """The work of one program."""

    sequence: Any
    key_head: Any  # of the sequence
    block: Any  # the block of KEYS keys
    first_block: Any  # the first block of queries that sees the keys
    n_blocks: Any  # blocks of queries from there on


@gluon.jit
def work_of_program(sizes, FORM: gl.constexpr):
    """Return the work of this program.

    Programs are numbered by set of heads, then by block of keys, ascending or descending, then by head. A set has
    enough heads that few programs wait for each other, and few enough that their queries stay in the L2 cache
    (`backward_plan.py` has the figures). The program with the first keys visits all queries: some may see no key, and
    their dq is zero.
    """
    key_blocks = (sizes.key_rows + KEYS - 1) // KEYS
    program = gl.program_id(0)
    first_head = program // (sizes.set_heads * key_blocks) * sizes.set_heads
    heads_here = gl.minimum(sizes.set_heads, sizes.n_key_heads - first_head)
    place = program % (sizes.set_heads * key_blocks)
    block = place // heads_here if FORM.ASCENDING else key_blocks - 1 - place // heads_here
    key_head = first_head + place % heads_here
    key_heads = sizes.n_heads // sizes.group
    query_blocks = (sizes.query_rows + FORM.QUERIES - 1) // FORM.QUERIES
    first_block = gl.maximum(block * KEYS - (sizes.key_rows - sizes.query_rows) - sizes.right, 0) // FORM.QUERIES
    if block == 0:
        first_block = 0
    return Work(key_head // key_heads, key_head % key_heads, block, first_block, query_blocks - first_block)


@gluon.jit
def last_block_seen(query, sizes, FORM: gl.constexpr):
    """Return the last block of keys that any of QUERIES queries from `query` on sees; 0 if they see none."""
    last_query = query + FORM.QUERIES - 1
    last_key = gl.minimum(last_query + (sizes.key_rows - sizes.query_rows) + sizes.right, sizes.key_rows - 1)
    return gl.maximum(last_key, 0) // KEYS


@gluon.jit
def fetch_tiles(fetched, tiles, signals, sizes, n_parts, FORM: gl.constexpr):
    """Run the producer warp: load keys and values by TMA, then q, do, lse and δ of every head of the group."""
    q, k, v, doutput, statistics = fetched
    work = work_of_program(sizes, FORM)
    keys_ready = signals.index(KEYS_READY)
    mbarrier.expect(keys_ready, 2 * KEYS * (FORM.FIRST + FORM.REST) * 2)
    for part in gl.static_range(GROUPS):
        key_head, key = work.key_head // n_parts, work.block * KEYS + part * ROWS
        start_fetching(k, work.sequence, key_head, key, keys_ready, tiles.keys, part, FORM)
        start_fetching(v, work.sequence, key_head, key, keys_ready, tiles.keys, GROUPS + part, FORM)
    for n in range(work.n_blocks * sizes.group):
        slot = n % FORM.STAGES
        head = work.key_head * sizes.group + n // work.n_blocks
        query = (work.first_block + n % work.n_blocks) * FORM.QUERIES
        row = (work.sequence * sizes.n_heads + head) * 2  # of statistics: lse, and below it δ
        mbarrier.wait(signals.index(SLOTS + 2 * FORM.STAGES + slot), (n // FORM.STAGES + 1) % 2)
        ready = signals.index(SLOTS + slot)
        mbarrier.expect(ready, FORM.QUERIES * ((FORM.FIRST + FORM.REST) * 2 + 4))
        start_fetching(q, work.sequence, head, query, ready, tiles.queries, 2 * slot, FORM)
        fetch(statistics, [row, query], ready, tiles.statistics.index(2 * slot))
        ready = signals.index(SLOTS + FORM.STAGES + slot)
        mbarrier.expect(ready, FORM.QUERIES * ((FORM.FIRST + FORM.REST) * 2 + 4))
        start_fetching(doutput, work.sequence, head, query, ready, tiles.queries, 2 * slot + 1, FORM)
        fetch(statistics, [row + 1, query], ready, tiles.statistics.index(2 * slot + 1))


@gluon.jit
def tile_of_sums(sizes, work, n):
    """Return the index of the n-th block of queries, counted through all heads."""
    head = work.sequence * sizes.n_heads + work.key_head * sizes.group + n // work.n_blocks
    return head * (work.first_block + work.n_blocks) + work.first_block + n % work.n_blocks


@gluon.jit
def turn_of(counters_ptr, sizes, n, FORM: gl.constexpr):
    """Return the counter of the n-th block of queries, and how many programs add before this one and after it."""
    work = work_of_program(sizes, FORM)
    query_block = work.first_block + n % work.n_blocks
    others = last_block_seen(query_block * FORM.QUERIES, sizes, FORM) - work.block
    before = work.block if FORM.ASCENDING else others
    return counters_ptr + tile_of_sums(sizes, work, n), before, work.block + others - before


@gluon.jit
def poll_counters(counters_ptr, signals, sizes, FORM: gl.constexpr):
    """Run the warp that polls the counters: signal when all earlier programs have added."""
    work = work_of_program(sizes, FORM)
    for n in range(work.n_blocks * sizes.group):
        counter, before, _after = turn_of(counters_ptr, sizes, n, FORM)
        mbarrier.wait(signals.index(COUNTED + n % 2), (n // 2 + 1) % 2)
        counted = 0
        while counted < before:
            counted = gl.inline_asm_elementwise(
                "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l,~{memory}",
                [gl.cast(counter, gl.int64, bitcast=True)], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        fence_of_proxies()  # the counter was read by a thread; TMA adds
        mbarrier.arrive(signals.index(MAY_ADD + n % 2), count=1)


@gluon.jit
def add_and_store(dq, dk, dv, sums, counters_ptr, tiles, signals, sizes, FORM: gl.constexpr):
    """Run the warp that adds dq to the sum by TMA, after all earlier programs have added, and raises the counter.

    The first program stores its dq as the sum. The last stores the result, and raises no counter. At the end, store dk
    and dv. `dq` and `sums` have a descriptor for each warpgroup.
    """
    work = work_of_program(sizes, FORM)
    for n in range(work.n_blocks * sizes.group):
        counter, before, after = turn_of(counters_ptr, sizes, n, FORM)
        mbarrier.wait(signals.index(DQ_READY), n % 2)
        mbarrier.wait(signals.index(MAY_ADD + n % 2), n // 2 % 2)
        if after > 0:
            row = tile_of_sums(sizes, work, n) * (FORM.QUERIES * (FORM.FIRST + FORM.REST) // SUM_COLUMNS)
            for part in gl.static_range(GROUPS):
                if before == 0:
                    put(sums[part], [row + part * sum_rows(DQ_COLUMNS), 0], tiles.dq[part].index(0))
                else:
                    add(sums[part], [row + part * sum_rows(DQ_COLUMNS), 0], tiles.dq[part].index(0))
            tma.store_wait(0)  # TMA has read the tiles
            mbarrier.arrive(signals.index(DQ_FREE), count=1)
            wait_until_written()  # and the sum is in memory
            thread_barrier()
            fence_of_proxies()
            gl.inline_asm_elementwise(
                "fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [$1], $2; mov.b32 $0, 0;", "=r,l,r,~{memory}",
                [gl.cast(counter, gl.int64, bitcast=True), before + 1], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            query = (work.first_block + n % work.n_blocks) * FORM.QUERIES
            head = work.key_head * sizes.group + n // work.n_blocks
            for part in gl.static_range(GROUPS):
                put_dq(dq, work.sequence, head, query, tiles, part, FORM)
            tma.store_wait(0)
            mbarrier.arrive(signals.index(DQ_FREE), count=1)
        mbarrier.arrive(signals.index(COUNTED + n % 2), count=1)
    mbarrier.wait(signals.index(DONE), 0)
    for part in gl.static_range(GROUPS):
        key = work.block * KEYS + part * ROWS
        put_head(dk, work.sequence, work.key_head, key, tiles.keys, part, FORM)
        put_head(dv, work.sequence, work.key_head, key, tiles.keys, GROUPS + part, FORM)
    tma.store_wait(0)


class DqPlace(NamedTuple):
    """The first row and column of a warpgroup's tile of dq, and how many columns."""

    row: int
    column: int
    columns: int


@gluon.constexpr_function
def place_in_dq(part, first, rest):
    """Return a warpgroup's tile of dq: half the rows or columns of heads in one tile, else a tile of the head each."""
    if rest:
        return DqPlace(0, part * first, rest if part else first)
    if first == DQ_COLUMNS.value:
        return DqPlace(part * DQ_ROWS.value, 0, DQ_COLUMNS.value)
    return DqPlace(0, part * DQ_COLUMNS.value, DQ_COLUMNS.value)


@gluon.jit
def allocate_dq(sums, PART: gl.constexpr, FORM: gl.constexpr):
    """Allocate shared memory for a warpgroup's tile of dq, as it lies in the sum."""
    ROWS_OF_SUM: gl.constexpr = sum_rows(place_in_dq(PART, FORM.FIRST, FORM.REST).columns)
    return gl.allocate_shared_memory(gl.float32, [1, ROWS_OF_SUM, SUM_COLUMNS], sums.layout)


@gluon.jit
def in_half_precision(tiles, PART: gl.constexpr, dq, FORM: gl.constexpr):
    """Return the memory of a warpgroup's part of dq as a tile of dq: the last program stores its result there."""
    COLUMNS: gl.constexpr = place_in_dq(PART, FORM.FIRST, FORM.REST).columns
    SHAPE: gl.constexpr = [2, 1, 1, DQ_ROWS, COLUMNS]
    return reinterpreted(tiles.dq[PART].index(0), tiles.queries.first.dtype, SHAPE, dq[PART].layout).index(0)


@gluon.jit
def put_dq(dq, sequence, head, query, tiles, PART: gl.constexpr, FORM: gl.constexpr):
    """Start storing a warpgroup's part of dq, of a block of queries from `query` on, by TMA."""
    PLACE: gl.constexpr = place_in_dq(PART, FORM.FIRST, FORM.REST)
    ROW: gl.constexpr = PLACE.row
    COLUMN: gl.constexpr = PLACE.column
    put(dq[PART], [sequence, head, query + ROW, COLUMN], in_half_precision(tiles, PART, dq, FORM))
