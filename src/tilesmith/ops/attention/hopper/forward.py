"""The forward for long sequences on Hopper: the same computation as in `forward`, which read first.

There a program's warps all do the same, and while they are at their exponentials the tensor cores idle, unless another
program happens to be at its products. Here it is arranged. Of each program one warp does nothing but fetch keys and
values, into shared memory, as room becomes free. GROUPS warpgroups have 64 queries each and share them, each at its own
pace: while one is at its exponentials, its last weights are being multiplied by values, and others multiply; each skips
the blocks of keys that only others see. Waiting is for barriers in shared memory, each of which counts arrivals; `i //
n % 2`, the phase, tells one round of a barrier from the next.

Where ptxas sees anything but products touch their registers while one is under way, it makes every product wait for the
one before; the order of a step is one that it takes. What is done to scores is in `hopper_weights`.

Programs may stay and take one tile of queries after another (PERSISTENT): the next tile's queries, keys and values are
on their way while the last output is.
"""

from __future__ import annotations

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

FETCHING_REGISTERS = gl.constexpr(24)  # of a thread that fetches; those that compute have what is left
PLACES = gl.constexpr(2)  # for queries: the next block's are fetched while these are attended with


@gluon.jit(do_not_specialize=(*NOT_SPECIALISED, "n_tiles", "together"))
def attention_hopper_forward_kernel(
    q, k, v, output, lse_ptr, n_heads, group, query_rows, key_rows, right, n_tiles, together, scale,
    HEAD: gl.constexpr, GROUPS: gl.constexpr, REGISTERS: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    STAGES: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """q, k, v and output are descriptors: of ROWS queries, of BLOCK_KEYS keys."""
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
    tiles = (q_tiles, k_tiles, v_tiles)
    signals = (q_ready, k_ready, v_ready, q_free, k_free, v_free)
    sizes = (n_heads, group, query_rows, key_rows, right, n_tiles, together)
    fetched = (q, k, v, tiles, signals, sizes)
    attended = (output, lse_ptr, tiles, signals, sizes, scale)
    gl.static_assert(GROUPS == 2 or GROUPS == 3 or GROUPS == 4)
    if GROUPS == 2:
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
def place_of_tile(tile, n_heads, query_rows, n_tiles, together, GROUPS: gl.constexpr):
    """Sequence, head and first query of a block of queries.

    As many heads as are taken `together` have their last blocks first, so that no long one is left for the end.
    """
    n_blocks = (query_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    first_head = tile // (together * n_blocks) * together
    heads = gl.minimum(together, n_tiles // n_blocks - first_head)
    within = tile % (together * n_blocks)
    head = first_head + within % heads
    return head // n_heads, head % n_heads, (n_blocks - 1 - within // heads) * GROUPS * ROWS


@gluon.jit
def blocks_seen(start, N_ROWS: gl.constexpr, query_rows, key_rows, right, BLOCK_KEYS: gl.constexpr):
    """How many blocks of keys all of the N_ROWS queries from `start` on see whole, and how many any of them sees any
    of."""
    shift = key_rows - query_rows
    last = gl.minimum(start + N_ROWS, query_rows) - 1
    whole = gl.minimum(gl.maximum(start + shift + right + 1, 0), key_rows) // BLOCK_KEYS
    seen = gl.minimum(gl.maximum(last + shift + right + 1, 0), key_rows)
    seen = gl.where(start < query_rows, seen, 0)
    return whole, (seen + BLOCK_KEYS - 1) // BLOCK_KEYS


@gluon.jit
def fetch_tiles(
    given, HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    PERSISTENT: gl.constexpr,
):  # fmt: skip
    """The one warp that fetches."""
    if PERSISTENT:
        fetched = 0
        for tile in range(gl.program_id(0), given[5][5], gl.num_programs(0)):
            turn = tile // gl.num_programs(0)
            fetched = fetch_for(tile, turn, fetched, given, HEAD, GROUPS, BLOCK_KEYS, STAGES)
    else:
        fetch_for(gl.program_id(0), 0, 0, given, HEAD, GROUPS, BLOCK_KEYS, STAGES)


@gluon.jit
def fetch_for(
    tile, turn, fetched, given,
    HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The queries of a tile, then keys and values from the last block to the first; how many blocks came so far."""
    q, k, v, tiles, signals, sizes = given
    q_tiles, k_tiles, v_tiles = tiles
    q_ready, k_ready, v_ready, q_free, k_free, v_free = signals
    n_heads, group, query_rows, key_rows, right, n_tiles, together = sizes
    sequence, head, start = place_of_tile(tile, n_heads, query_rows, n_tiles, together, GROUPS)
    _, n_blocks = blocks_seen(start, GROUPS * ROWS, query_rows, key_rows, right, BLOCK_KEYS)
    for part in gl.static_range(GROUPS):
        place = turn % PLACES * GROUPS + part
        mbarrier.wait(q_free.index(place), (turn // PLACES + 1) % 2)
        mbarrier.expect(q_ready.index(place), ROWS * HEAD * 2)
        fetch(q, [sequence, head, start + part * ROWS, 0], q_ready.index(place), q_tiles.index(place))
    for i in range(n_blocks):
        slot = (fetched + i) % STAGES
        emptied = ((fetched + i) // STAGES + 1) % 2  # of the round before: the first finds every place free
        corner = [sequence, head // group, (n_blocks - 1 - i) * BLOCK_KEYS, 0]
        mbarrier.wait(k_free.index(slot), emptied)
        mbarrier.expect(k_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(k, corner, k_ready.index(slot), k_tiles.index(slot))
        mbarrier.wait(v_free.index(slot), emptied)
        mbarrier.expect(v_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(v, corner, v_ready.index(slot), v_tiles.index(slot))
    return fetched + n_blocks


@gluon.jit
def attend(
    given, HEAD: gl.constexpr, GROUPS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    PERSISTENT: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """A warpgroup that computes."""
    if PERSISTENT:
        passed = 0
        for tile in range(gl.program_id(0), given[4][5], gl.num_programs(0)):
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
    """The warpgroup's queries of a tile, all keys that they see, and what comes of it; how many blocks came so far."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_KEYS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, HEAD, 16])
    output_tensor, lse_ptr, tiles, signals, sizes, scale = given
    q_tiles, k_tiles, v_tiles = tiles
    q_ready, k_ready, v_ready, q_free, k_free, v_free = signals
    n_heads, _group, query_rows, key_rows, right, n_tiles, together = sizes
    factor = scale * LOG2_E
    sequence, head, start = place_of_tile(tile, n_heads, query_rows, n_tiles, together, GROUPS)
    _, n_blocks = blocks_seen(start, GROUPS * ROWS, query_rows, key_rows, right, BLOCK_KEYS)
    start += PART * ROWS
    whole, own_blocks = blocks_seen(start, ROWS, query_rows, key_rows, right, BLOCK_KEYS)
    rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    last_seen = gl.minimum(rows + (key_rows - query_rows) + right, key_rows - 1)

    largest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = added_apart(spread(gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES), BLOCK_KEYS))
    output = gl.zeros([ROWS, HEAD], gl.float32, OUTPUT)
    place = turn % PLACES * GROUPS + PART
    mbarrier.wait(q_ready.index(place), turn // PLACES % 2)
    q = q_tiles.index(place).reshape([ROWS, HEAD])
    for i in range(passed, passed + n_blocks - own_blocks):  # those that only others see
        mbarrier.wait(k_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(k_free.index(i % STAGES), count=1)
        mbarrier.wait(v_ready.index(i % STAGES), i // STAGES % 2)
        mbarrier.arrive(v_free.index(i % STAGES), count=1)
    passed += n_blocks
    if own_blocks > 0:
        first = passed - own_blocks
        mbarrier.wait(k_ready.index(first % STAGES), first // STAGES % 2)
        scores = start_scores(q, k_tiles, first, SCORES, HEAD, BLOCK_KEYS, STAGES)
        products = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_free.index(first % STAGES), count=1)
        new, _unused, largest, total = weighed(
            products, largest, total, factor, (own_blocks - 1) * BLOCK_KEYS, last_seen, SCORES, BLOCK_KEYS, True
        )  # fmt: skip
        weights = packed(new, q.dtype, BLOCK_KEYS)
        mbarrier.wait(v_ready.index(first % STAGES), first // STAGES % 2)
        # From the last block on: those that not every query sees whole come first, and are the only ones checked.
        for checked in gl.static_range(2):
            begin = first + 1 if checked == 0 else gl.maximum(passed - whole, first + 1)
            end = passed - whole if checked == 0 else passed
            for i in range(begin, end):
                mbarrier.wait(k_ready.index(i % STAGES), i // STAGES % 2)
                scores = start_scores(q, k_tiles, i, SCORES, HEAD, BLOCK_KEYS, STAGES)
                sums = start_sum(weights, v_tiles, output, i - 1, OUTPUT, HEAD, BLOCK_KEYS, STAGES)
                products = warpgroup_mma_wait(1, deps=[scores])
                mbarrier.arrive(k_free.index(i % STAGES), count=1)
                new, shrink, largest, total = weighed(
                    products, largest, total, factor, (passed - 1 - i) * BLOCK_KEYS, last_seen,
                    SCORES, BLOCK_KEYS, checked == 0,
                )  # fmt: skip
                # Also keeps ptxas from moving the exponentials behind the next wait.
                mbarrier.wait(v_ready.index(i % STAGES), i // STAGES % 2)
                output = warpgroup_mma_wait(0, deps=[sums])
                mbarrier.arrive(v_free.index((i - 1) % STAGES), count=1)
                output = output * gl.convert_layout(shrink, gl.SliceLayout(1, OUTPUT))[:, None]
                weights = packed(new, q.dtype, BLOCK_KEYS)  # in place of the last, which are in use until here
        sums = start_sum(weights, v_tiles, output, passed - 1, OUTPUT, HEAD, BLOCK_KEYS, STAGES)
        output = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(v_free.index((passed - 1) % STAGES), count=1)

    all_weights = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))
    sees_nothing = all_weights == 0.0
    lse = gl.where(sees_nothing, float("inf"), largest + gl.log2(all_weights))
    lse_start = (gl.cast(sequence, gl.int64) * n_heads + head) * query_rows
    gl.store(lse_ptr + lse_start + rows, lse, mask=rows < query_rows)
    all_weights = gl.convert_layout(gl.where(sees_nothing, 1.0, all_weights), gl.SliceLayout(1, OUTPUT))
    # By way of the queries' place, which are not needed any more.
    q.store((output / all_weights[:, None]).to(k_tiles.dtype))
    fence_async_shared()
    put(output_tensor, [sequence, head, start, 0], q_tiles.index(place))
    tma.store_wait(0)
    mbarrier.arrive(q_free.index(place), count=1)
    return passed


@gluon.jit
def start_scores(
    q, k_tiles, i, SCORES: gl.constexpr, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The products with the i-th block of keys, begun."""
    zeros = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES)
    k = k_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])
    return warpgroup_mma(q, k.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def start_sum(
    weights, v_tiles, output, i,
    OUTPUT: gl.constexpr, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The output with the weighted values of the i-th block added, begun."""
    v = v_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])
    operand = gl.convert_layout(unpacked(weights, v.dtype, BLOCK_KEYS), gl.DotOperandLayout(0, OUTPUT, 2))
    return warpgroup_mma(operand, v, output, is_async=True)
