"""The forward kernel on Hopper: same computation as `kernels/forward.py` (read that first).

`forward_plan.py` says when this kernel runs and with which tiles: half precision, no bias, mask, window, softcap or
dropout. A head is one tile or two: `head_tiles.py`. Short sequences have programs of one warpgroup, several on a
multiprocessor.

In the portable kernel all warps do the same. While they compute exponentials the tensor cores idle, unless another
program happens to multiply. Here warp specialisation overlaps the two. One producer warp loads keys and values by TMA
into a ring of STAGES slots in shared memory. GROUPS consumer warpgroups have 64 queries each and share the ring, each
at its own pace. While one warpgroup computes exponentials, the tensor cores multiply its last weights by values, and
other warpgroups multiply. A warpgroup skips the blocks of keys that only others see. mbarriers in shared memory signal
full and free slots; `i // n % 2` is the phase of an mbarrier.

ptxas serialises all wgmma if it sees other instructions touch their registers while one is in flight. The order within
a step avoids that. `softmax_weights.py` has the work on scores.

With PERSISTENT a program takes one tile of queries after another, and loads the next tile's queries, keys and values
while it stores the last output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from tilesmith.ops.attention.device.tiles import NOT_SPECIALISED
from tilesmith.ops.attention.hopper.head_tiles import (
    HeadTiles,
    allocate_heads,
    divided,
    fetch_head,
    finished,
    form,
    rows_of_head,
    scaled,
    start_scores,
    start_sum,
    store_output,
)
from tilesmith.ops.attention.hopper.softmax_weights import ROWS, added_apart, packed, spread, unpacked, weighed
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import FETCHING_REGISTERS, GROUP_WARPS, barriers


class Sizes(NamedTuple):
    """The sizes of a call."""

    n_heads: Any  # of queries
    group: Any  # query heads per key head
    query_rows: Any
    key_rows: Any
    right: Any  # keys that a query sees after its own place
    n_tiles: Any  # of GROUPS · ROWS queries, of all heads
    together: Any  # heads whose tiles run at the same time


class Shared(NamedTuple):
    """The tiles in shared memory, and the mbarriers that signal each tile loaded or free."""

    q: HeadTiles  # [PLACES · GROUPS, ROWS, columns]
    k: HeadTiles  # [STAGES, BLOCK_KEYS, columns]
    v: HeadTiles  # [STAGES, BLOCK_KEYS, columns]
    q_ready: Any
    k_ready: Any
    v_ready: Any
    q_free: Any
    k_free: Any
    v_free: Any


class Fetched(NamedTuple):
    """The arguments of the producer warp: descriptors of q, k and v, and where the tiles go."""

    q: HeadTiles
    k: HeadTiles
    v: HeadTiles
    shared: Any
    sizes: Any


class Attended(NamedTuple):
    """The arguments of the consumer warpgroups. The output is described."""

    output: HeadTiles
    lse_ptr: Any
    shared: Any
    sizes: Any
    scale: Any


@gluon.jit(do_not_specialize=(*NOT_SPECIALISED, "n_tiles", "together"))
def attention_hopper_forward_kernel(
    q_first, q_rest, k_first, k_rest, v_first, v_rest, output_first, output_rest, lse_ptr,
    n_heads, group, query_rows, key_rows, right, n_tiles, together, scale,
    FIRST: gl.constexpr, REST: gl.constexpr, PLACES: gl.constexpr, GROUPS: gl.constexpr, REGISTERS: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Compute output and lse. q and output are descriptors of ROWS queries, k and v of BLOCK_KEYS keys.

    There are PLACES buffers for queries: with two the producer loads the next tile while the consumers use this one.
    """
    FORM: gl.constexpr = form(FIRST, REST, PLACES, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT)
    q_tiles = allocate_heads(q_first, q_rest, PLACES * GROUPS, ROWS, FORM)
    k_tiles = allocate_heads(k_first, k_rest, STAGES, BLOCK_KEYS, FORM)
    v_tiles = allocate_heads(v_first, v_rest, STAGES, BLOCK_KEYS, FORM)
    q_ready = barriers(PLACES * GROUPS, 1)
    q_free = barriers(PLACES * GROUPS, 1)
    k_ready = barriers(STAGES, 1)
    v_ready = barriers(STAGES, 1)
    k_free = barriers(STAGES, GROUPS)
    v_free = barriers(STAGES, GROUPS)
    fence_async_shared()
    shared = Shared(q_tiles, k_tiles, v_tiles, q_ready, k_ready, v_ready, q_free, k_free, v_free)
    sizes = Sizes(n_heads, group, query_rows, key_rows, right, n_tiles, together)
    fetched = Fetched(
        HeadTiles(q_first, q_rest), HeadTiles(k_first, k_rest), HeadTiles(v_first, v_rest), shared, sizes
    )  # fmt: skip
    attended = Attended(HeadTiles(output_first, output_rest), lse_ptr, shared, sizes, scale)
    gl.static_assert(GROUPS >= 1 and GROUPS <= 4)
    gl.static_assert(STAGES >= 2)  # a warpgroup frees the values of a block after those of the next one have come
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (attend, (attended, FORM, 0)),
                (fetch_tiles, (fetched, FORM)),
            ],
            [1],
            [FETCHING_REGISTERS],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (attended, FORM, 0)),
                (attend, (attended, FORM, 1)),
                (fetch_tiles, (fetched, FORM)),
            ],
            [GROUP_WARPS, 1],
            [REGISTERS, FETCHING_REGISTERS],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (attend, (attended, FORM, 0)),
                (attend, (attended, FORM, 1)),
                (attend, (attended, FORM, 2)),
                (fetch_tiles, (fetched, FORM)),
            ],
            [GROUP_WARPS, GROUP_WARPS, 1],
            [REGISTERS, REGISTERS, FETCHING_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (attend, (attended, FORM, 0)),
                (attend, (attended, FORM, 1)),
                (attend, (attended, FORM, 2)),
                (attend, (attended, FORM, 3)),
                (fetch_tiles, (fetched, FORM)),
            ],
            [GROUP_WARPS, GROUP_WARPS, GROUP_WARPS, 1],
            [REGISTERS, REGISTERS, REGISTERS, FETCHING_REGISTERS],
        )


@gluon.jit
def place_of_tile(tile, sizes, GROUPS: gl.constexpr):
    """Return the sequence, the head and the first query of a tile.

    `together` heads form a set. A set starts with the last blocks of its heads: under a causal mask these are the
    longest, and a long tile that starts last idles the GPU.
    """
    n_blocks = (sizes.query_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    first_head = tile // (sizes.together * n_blocks) * sizes.together
    heads = gl.minimum(sizes.together, sizes.n_tiles // n_blocks - first_head)
    within = tile % (sizes.together * n_blocks)
    head = first_head + within % heads
    return head // sizes.n_heads, head % sizes.n_heads, (n_blocks - 1 - within // heads) * GROUPS * ROWS


@gluon.jit
def blocks_seen(start, sizes, N_ROWS: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Return how many blocks of keys every one of N_ROWS queries sees fully, and how many at least one sees in part."""
    shift = sizes.key_rows - sizes.query_rows
    last = gl.minimum(start + N_ROWS, sizes.query_rows) - 1
    whole = gl.minimum(gl.maximum(start + shift + sizes.right + 1, 0), sizes.key_rows) // BLOCK_KEYS
    seen = gl.minimum(gl.maximum(last + shift + sizes.right + 1, 0), sizes.key_rows)
    seen = gl.where(start < sizes.query_rows, seen, 0)
    return whole, (seen + BLOCK_KEYS - 1) // BLOCK_KEYS


@gluon.jit
def fetch_tiles(given, FORM: gl.constexpr):
    """Run the producer warp: load every tile of this program."""
    if FORM.PERSISTENT:
        fetched = 0
        for tile in range(gl.program_id(0), given.sizes.n_tiles, gl.num_programs(0)):
            turn = tile // gl.num_programs(0)
            fetched = fetch_for(tile, turn, fetched, given, FORM)
    else:
        fetch_for(gl.program_id(0), 0, 0, given, FORM)


@gluon.jit
def fetch_for(tile, turn, fetched, given, FORM: gl.constexpr):
    """Load the queries of a tile, then keys and values from the last block to the first. Returns the blocks so far."""
    GROUPS: gl.constexpr = FORM.GROUPS
    BLOCK_KEYS: gl.constexpr = FORM.BLOCK_KEYS
    shared, sizes = given.shared, given.sizes
    sequence, head, start = place_of_tile(tile, sizes, GROUPS)
    _, n_blocks = blocks_seen(start, sizes, GROUPS * ROWS, BLOCK_KEYS)
    for part in gl.static_range(GROUPS):
        place = turn % FORM.PLACES * GROUPS + part
        mbarrier.wait(shared.q_free.index(place), (turn // FORM.PLACES + 1) % 2)
        query, ready = start + part * ROWS, shared.q_ready.index(place)
        fetch_head(given.q, sequence, head, query, ready, shared.q, place, ROWS, FORM)
    for i in range(n_blocks):
        slot = (fetched + i) % FORM.STAGES
        emptied = ((fetched + i) // FORM.STAGES + 1) % 2  # phase of the round before: at first every slot is free
        key_head, key = head // sizes.group, (n_blocks - 1 - i) * BLOCK_KEYS
        mbarrier.wait(shared.k_free.index(slot), emptied)
        ready = shared.k_ready.index(slot)
        fetch_head(given.k, sequence, key_head, key, ready, shared.k, slot, BLOCK_KEYS, FORM)
        mbarrier.wait(shared.v_free.index(slot), emptied)
        ready = shared.v_ready.index(slot)
        fetch_head(given.v, sequence, key_head, key, ready, shared.v, slot, BLOCK_KEYS, FORM)
    return fetched + n_blocks


@gluon.jit
def attend(given, FORM: gl.constexpr, PART: gl.constexpr):
    """Run a consumer warpgroup: compute its part of every tile of this program."""
    if FORM.PERSISTENT:
        passed = 0
        for tile in range(gl.program_id(0), given.sizes.n_tiles, gl.num_programs(0)):
            turn = tile // gl.num_programs(0)
            passed = attend_tile(tile, turn, passed, given, FORM, PART)
    else:
        attend_tile(gl.program_id(0), 0, 0, given, FORM, PART)


@gluon.jit
def attend_tile(tile, turn, passed, given, FORM: gl.constexpr, PART: gl.constexpr):
    """Compute output and lse of the warpgroup's queries of a tile. Returns the blocks of keys so far."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST or FIRST
    GROUPS: gl.constexpr = FORM.GROUPS
    BLOCK_KEYS: gl.constexpr = FORM.BLOCK_KEYS
    STAGES: gl.constexpr = FORM.STAGES
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_KEYS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, FIRST, 16])
    OUTPUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, REST, 16])
    shared, sizes = given.shared, given.sizes
    DTYPE: gl.constexpr = shared.k.first.dtype
    factor = given.scale * LOG2_E
    sequence, head, start = place_of_tile(tile, sizes, GROUPS)
    _, n_blocks = blocks_seen(start, sizes, GROUPS * ROWS, BLOCK_KEYS)
    start += PART * ROWS
    whole, own_blocks = blocks_seen(start, sizes, ROWS, BLOCK_KEYS)
    rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))  # [ROWS]
    last_seen = gl.minimum(rows + (sizes.key_rows - sizes.query_rows) + sizes.right, sizes.key_rows - 1)  # [ROWS]

    largest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))  # [ROWS]
    # [ROWS, LANES]: each thread has its own sum.
    total = added_apart(spread(gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES), BLOCK_KEYS))
    output = gl.zeros([ROWS, FIRST], gl.float32, OUTPUT)  # [ROWS, FIRST]
    rest = gl.zeros([ROWS, REST], gl.float32, OUTPUT_REST)  # [ROWS, REST]
    place = turn % FORM.PLACES * GROUPS + PART
    mbarrier.wait(shared.q_ready.index(place), turn // FORM.PLACES % 2)
    for i in range(passed, passed + n_blocks - own_blocks):  # blocks that only other warpgroups see
        mbarrier.wait(shared.k_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(shared.k_free.index(i % STAGES), count=1)
        mbarrier.wait(shared.v_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(shared.v_free.index(i % STAGES), count=1)
    passed += n_blocks
    if own_blocks > 0:
        first = passed - own_blocks
        mbarrier.wait(shared.k_ready.index(first % STAGES), first // STAGES % 2)
        scores = start_scores(shared.q, place, shared.k, first, SCORES, FORM)
        products = warpgroup_mma_wait(0, deps=[scores])  # [ROWS, BLOCK_KEYS]
        mbarrier.arrive(shared.k_free.index(first % STAGES), count=1)
        new, _unused, largest, total = weighed(
            products, largest, total, factor, (own_blocks - 1) * BLOCK_KEYS, last_seen, SCORES, BLOCK_KEYS, True
        )  # fmt: skip
        weights = packed(new, DTYPE, BLOCK_KEYS)  # [ROWS, BLOCK_KEYS / 2] words of two
        mbarrier.wait(shared.v_ready.index(first % STAGES), first // STAGES % 2)
        # From the last block to the first. Blocks that some query sees only in part come first; only these are masked.
        for checked in gl.static_range(2):
            begin = first + 1 if checked == 0 else gl.maximum(passed - whole, first + 1)
            end = passed - whole if checked == 0 else passed
            for i in range(begin, end):
                mbarrier.wait(shared.k_ready.index(i % STAGES), i // STAGES % 2)
                scores = start_scores(shared.q, place, shared.k, i, SCORES, FORM)
                values = rows_of_head(shared.v, (i - 1) % STAGES, BLOCK_KEYS, FORM)
                output, rest = start_sum(unpacked(weights, DTYPE, BLOCK_KEYS), values, output, rest, FORM)
                products = warpgroup_mma_wait(2 if FORM.REST else 1, deps=[scores])  # [ROWS, BLOCK_KEYS]
                mbarrier.arrive(shared.k_free.index(i % STAGES), count=1)
                new, shrink, largest, total = weighed(
                    products, largest, total, factor, (passed - 1 - i) * BLOCK_KEYS, last_seen,
                    SCORES, BLOCK_KEYS, checked == 0,
                )  # fmt: skip
                # This wait also keeps ptxas from moving the exponentials behind the next wait.
                mbarrier.wait(shared.v_ready.index(i % STAGES), i // STAGES % 2)
                output, rest = finished(output, rest, FORM)
                mbarrier.arrive(shared.v_free.index((i - 1) % STAGES), count=1)
                output, rest = scaled(output, rest, shrink, FORM)
                weights = packed(new, DTYPE, BLOCK_KEYS)  # replaces the last weights, which wgmma reads until here
        values = rows_of_head(shared.v, (passed - 1) % STAGES, BLOCK_KEYS, FORM)
        output, rest = start_sum(unpacked(weights, DTYPE, BLOCK_KEYS), values, output, rest, FORM)
        output, rest = finished(output, rest, FORM)
        mbarrier.arrive(shared.v_free.index((passed - 1) % STAGES), count=1)

    all_weights = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))  # [ROWS], as lse
    sees_nothing = all_weights == 0.0
    lse = gl.where(sees_nothing, float("inf"), largest + gl.log2(all_weights))
    lse_start = (gl.cast(sequence, gl.int64) * sizes.n_heads + head) * sizes.query_rows
    gl.store(given.lse_ptr + lse_start + rows, lse, mask=rows < sizes.query_rows)
    output, rest = divided(output, rest, gl.where(sees_nothing, 1.0, all_weights), FORM)
    store_output(given.output, sequence, head, start, output, rest, shared.q, place, FORM)
    mbarrier.arrive(shared.q_free.index(place), count=1)
    return passed
