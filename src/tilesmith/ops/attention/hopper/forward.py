"""The forward kernel on Hopper: same computation as `kernels/forward.py` (read that first).

`forward_plan.py` says when this kernel runs and with which tiles: half precision, heads of 64 or 128, no bias, mask,
window, softcap or dropout. Short sequences have programs of one warpgroup, several on a multiprocessor.

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
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.attention.device.tiles import NOT_SPECIALISED
from tilesmith.ops.attention.hopper.softmax_weights import ROWS, added_apart, packed, spread, unpacked, weighed
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import GROUP_WARPS, barriers
from tilesmith.toolchain.gluon import fetch, put

FETCHING_REGISTERS = gl.constexpr(24)  # per thread of the producer; the consumers share the rest
PLACES = gl.constexpr(2)  # buffers for queries: the producer loads the next tile while the consumers use this one


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

    q_tiles: Any  # [PLACES · GROUPS, ROWS, HEAD]
    k_tiles: Any  # [STAGES, BLOCK_KEYS, HEAD]
    v_tiles: Any  # [STAGES, BLOCK_KEYS, HEAD]
    q_ready: Any
    k_ready: Any
    v_ready: Any
    q_free: Any
    k_free: Any
    v_free: Any


class Fetched(NamedTuple):
    """The arguments of the producer warp. q, k and v are descriptors."""

    q: Any
    k: Any
    v: Any
    shared: Any
    sizes: Any


class Attended(NamedTuple):
    """The arguments of the consumer warpgroups. The output is a descriptor."""

    output: Any
    lse_ptr: Any
    shared: Any
    sizes: Any
    scale: Any


@gluon.jit(do_not_specialize=(*NOT_SPECIALISED, "n_tiles", "together"))
def attention_hopper_forward_kernel(
    q, k, v, output, lse_ptr, n_heads, group, query_rows, key_rows, right, n_tiles, together, scale,
    HEAD: gl.constexpr, GROUPS: gl.constexpr, REGISTERS: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    STAGES: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Compute output and lse. q and output are descriptors of ROWS queries, k and v of BLOCK_KEYS keys."""
    q_tiles = gl.allocate_shared_memory(q.dtype, [PLACES * GROUPS, 1, 1, ROWS, HEAD], q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BLOCK_KEYS, HEAD], k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BLOCK_KEYS, HEAD], v.layout)
    q_ready = barriers(PLACES * GROUPS, 1)
    q_free = barriers(PLACES * GROUPS, 1)
    k_ready = barriers(STAGES, 1)
    v_ready = barriers(STAGES, 1)
    k_free = barriers(STAGES, GROUPS)
    v_free = barriers(STAGES, GROUPS)
    fence_async_shared()
    shared = Shared(q_tiles, k_tiles, v_tiles, q_ready, k_ready, v_ready, q_free, k_free, v_free)
    sizes = Sizes(n_heads, group, query_rows, key_rows, right, n_tiles, together)
    fetched = Fetched(q, k, v, shared, sizes)
    attended = Attended(output, lse_ptr, shared, sizes, scale)
    gl.static_assert(GROUPS >= 1 and GROUPS <= 4)
    gl.static_assert(STAGES >= 2)  # a warpgroup frees the values of a block after those of the next one have come
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 0)),
                (fetch_tiles, (fetched, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT)),
            ],
            [1],
            [FETCHING_REGISTERS],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 0)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 1)),
                (fetch_tiles, (fetched, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT)),
            ],
            [GROUP_WARPS, 1],
            [REGISTERS, FETCHING_REGISTERS],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 0)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 1)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 2)),
                (fetch_tiles, (fetched, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT)),
            ],
            [GROUP_WARPS, GROUP_WARPS, 1],
            [REGISTERS, REGISTERS, FETCHING_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 0)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 1)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 2)),
                (attend, (attended, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT, 3)),
                (fetch_tiles, (fetched, HEAD, GROUPS, BLOCK_KEYS, STAGES, PERSISTENT)),
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
def fetch_tiles(
    given, HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Run the producer warp: load every tile of this program."""
    if PERSISTENT:
        fetched = 0
        for tile in range(gl.program_id(0), given.sizes.n_tiles, gl.num_programs(0)):
            turn = tile // gl.num_programs(0)
            fetched = fetch_for(tile, turn, fetched, given, HEAD, GROUPS, BLOCK_KEYS, STAGES)
    else:
        fetch_for(gl.program_id(0), 0, 0, given, HEAD, GROUPS, BLOCK_KEYS, STAGES)


@gluon.jit
def fetch_for(
    tile, turn, fetched, given,
    HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the queries of a tile, then keys and values from the last block to the first. Returns the blocks so far."""
    shared, sizes = given.shared, given.sizes
    sequence, head, start = place_of_tile(tile, sizes, GROUPS)
    _, n_blocks = blocks_seen(start, sizes, GROUPS * ROWS, BLOCK_KEYS)
    for part in gl.static_range(GROUPS):
        place = turn % PLACES * GROUPS + part
        mbarrier.wait(shared.q_free.index(place), (turn // PLACES + 1) % 2)
        mbarrier.expect(shared.q_ready.index(place), ROWS * HEAD * 2)
        corner = [sequence, head, start + part * ROWS, 0]
        fetch(given.q, corner, shared.q_ready.index(place), shared.q_tiles.index(place))
    for i in range(n_blocks):
        slot = (fetched + i) % STAGES
        emptied = ((fetched + i) // STAGES + 1) % 2  # phase of the round before: at first every slot is free
        corner = [sequence, head // sizes.group, (n_blocks - 1 - i) * BLOCK_KEYS, 0]
        mbarrier.wait(shared.k_free.index(slot), emptied)
        mbarrier.expect(shared.k_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(given.k, corner, shared.k_ready.index(slot), shared.k_tiles.index(slot))
        mbarrier.wait(shared.v_free.index(slot), emptied)
        mbarrier.expect(shared.v_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(given.v, corner, shared.v_ready.index(slot), shared.v_tiles.index(slot))
    return fetched + n_blocks


@gluon.jit
def attend(
    given, HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    PERSISTENT: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Run a consumer warpgroup: compute its part of every tile of this program."""
    if PERSISTENT:
        passed = 0
        for tile in range(gl.program_id(0), given.sizes.n_tiles, gl.num_programs(0)):
            turn = tile // gl.num_programs(0)
            passed = attend_tile(tile, turn, passed, given, HEAD, GROUPS, BLOCK_KEYS, STAGES, PART)
    else:
        attend_tile(gl.program_id(0), 0, 0, given, HEAD, GROUPS, BLOCK_KEYS, STAGES, PART)


@gluon.jit
def attend_tile(
    tile, turn, passed, given,
    HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    PART: gl.constexpr,
):  # fmt: skip
    """Compute output and lse of the warpgroup's queries of a tile. Returns the blocks of keys so far."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_KEYS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, HEAD, 16])
    shared, sizes = given.shared, given.sizes
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
    output = gl.zeros([ROWS, HEAD], gl.float32, OUTPUT)  # [ROWS, HEAD]
    place = turn % PLACES * GROUPS + PART
    mbarrier.wait(shared.q_ready.index(place), turn // PLACES % 2)
    q = shared.q_tiles.index(place).reshape([ROWS, HEAD])  # [ROWS, HEAD] in shared memory
    for i in range(passed, passed + n_blocks - own_blocks):  # blocks that only other warpgroups see
        mbarrier.wait(shared.k_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(shared.k_free.index(i % STAGES), count=1)
        mbarrier.wait(shared.v_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(shared.v_free.index(i % STAGES), count=1)
    passed += n_blocks
    if own_blocks > 0:
        first = passed - own_blocks
        mbarrier.wait(shared.k_ready.index(first % STAGES), first // STAGES % 2)
        scores = start_scores(q, shared.k_tiles, first, SCORES, HEAD, BLOCK_KEYS, STAGES)
        products = warpgroup_mma_wait(0, deps=[scores])  # [ROWS, BLOCK_KEYS]
        mbarrier.arrive(shared.k_free.index(first % STAGES), count=1)
        new, _unused, largest, total = weighed(
            products, largest, total, factor, (own_blocks - 1) * BLOCK_KEYS, last_seen, SCORES, BLOCK_KEYS, True
        )  # fmt: skip
        weights = packed(new, q.dtype, BLOCK_KEYS)  # [ROWS, BLOCK_KEYS / 2] words of two
        mbarrier.wait(shared.v_ready.index(first % STAGES), first // STAGES % 2)
        # From the last block to the first. Blocks that some query sees only in part come first; only these are masked.
        for checked in gl.static_range(2):
            begin = first + 1 if checked == 0 else gl.maximum(passed - whole, first + 1)
            end = passed - whole if checked == 0 else passed
            for i in range(begin, end):
                mbarrier.wait(shared.k_ready.index(i % STAGES), i // STAGES % 2)
                scores = start_scores(q, shared.k_tiles, i, SCORES, HEAD, BLOCK_KEYS, STAGES)
                sums = start_sum(weights, shared.v_tiles, output, i - 1, OUTPUT, HEAD, BLOCK_KEYS, STAGES)
                products = warpgroup_mma_wait(1, deps=[scores])  # [ROWS, BLOCK_KEYS]
                mbarrier.arrive(shared.k_free.index(i % STAGES), count=1)
                new, shrink, largest, total = weighed(
                    products, largest, total, factor, (passed - 1 - i) * BLOCK_KEYS, last_seen,
                    SCORES, BLOCK_KEYS, checked == 0,
                )  # fmt: skip
                # This wait also keeps ptxas from moving the exponentials behind the next wait.
                mbarrier.wait(shared.v_ready.index(i % STAGES), i // STAGES % 2)
                output = warpgroup_mma_wait(0, deps=[sums])  # [ROWS, HEAD]
                mbarrier.arrive(shared.v_free.index((i - 1) % STAGES), count=1)
                output = output * gl.convert_layout(shrink, gl.SliceLayout(1, OUTPUT))[:, None]
                weights = packed(new, q.dtype, BLOCK_KEYS)  # replaces the last weights, which wgmma reads until here
        sums = start_sum(weights, shared.v_tiles, output, passed - 1, OUTPUT, HEAD, BLOCK_KEYS, STAGES)
        output = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(shared.v_free.index((passed - 1) % STAGES), count=1)

    all_weights = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))  # [ROWS], as lse
    sees_nothing = all_weights == 0.0
    lse = gl.where(sees_nothing, float("inf"), largest + gl.log2(all_weights))
    lse_start = (gl.cast(sequence, gl.int64) * sizes.n_heads + head) * sizes.query_rows
    gl.store(given.lse_ptr + lse_start + rows, lse, mask=rows < sizes.query_rows)
    all_weights = gl.convert_layout(gl.where(sees_nothing, 1.0, all_weights), gl.SliceLayout(1, OUTPUT))
    # The output goes through the buffer of the queries, which are no longer needed.
    q.store((output / all_weights[:, None]).to(shared.k_tiles.dtype))
    fence_async_shared()
    put(given.output, [sequence, head, start, 0], shared.q_tiles.index(place))
    tma.store_wait(0)
    mbarrier.arrive(shared.q_free.index(place), count=1)
    return passed


@gluon.jit
def start_scores(
    q, k_tiles, i, SCORES: gl.constexpr, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Start the products with the i-th block of keys."""
    zeros = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES)
    k = k_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])  # [BLOCK_KEYS, HEAD] in shared memory
    return warpgroup_mma(q, k.permute([1, 0]), zeros, use_acc=False, is_async=True)  # [ROWS, BLOCK_KEYS]


@gluon.jit
def start_sum(
    weights, v_tiles, output, i,
    OUTPUT: gl.constexpr, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start adding the weighted values of the i-th block to the output."""
    v = v_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])  # [BLOCK_KEYS, HEAD] in shared memory
    # [ROWS, BLOCK_KEYS]
    operand = gl.convert_layout(unpacked(weights, v.dtype, BLOCK_KEYS), gl.DotOperandLayout(0, OUTPUT, 2))
    return warpgroup_mma(operand, v, output, is_async=True)  # [ROWS, HEAD]
