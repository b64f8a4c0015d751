"""Exact products of single precision on Hopper: the same computation as by pointers with planes made in each tile.

There the tensor cores wait while a tile is split, and the splitting waits for them. Here a program splits one step
ahead: the six products of a step are begun, and while they are made, the planes of the next step are put into the other
half of the shared memory, and the tiles of the step after that are asked for.

What that comes to: `_ahead_config` in `config`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from tilesmith.toolchain.gluon import thread_barrier

UNIT = gl.constexpr(4)  # elements that are loaded at once


@gluon.jit
def first_bits(x):
    return (x.to(gl.uint32, bitcast=True) & 0xFFFF0000).to(gl.float32, bitcast=True)


@gluon.jit
def as_bf16(x):
    return (x.to(gl.uint32, bitcast=True) >> 16).to(gl.uint16).to(gl.bfloat16, bitcast=True)


@gluon.jit
def room_for_planes(TILE: gl.constexpr):
    """Two of each, used in turn. Each in memory of its own: the compiler then knows that storing one leaves the others
    as they are."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(TILE, gl.bfloat16)
    high = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    middle = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    low = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    return high, middle, low


@gluon.jit
def put_planes(x, planes, slot):
    """As `bf16_parts` splits it."""
    high = first_bits(x)
    rest = x - high
    middle = first_bits(rest)
    planes[0].index(slot).store(as_bf16(high))
    planes[1].index(slot).store(as_bf16(middle))
    planes[2].index(slot).store(as_bf16(rest - middle))


@gluon.jit
def planes_in(planes, slot, TURNED: gl.constexpr):
    high, middle, low = planes[0].index(slot), planes[1].index(slot), planes[2].index(slot)
    if TURNED:
        high, middle, low = high.permute([1, 0]), middle.permute([1, 0]), low.permute([1, 0])
    return high, middle, low


@gluon.jit
def distance(count, stride, IS_ALONG: gl.constexpr):
    """In memory, between two elements that are so many apart; IS_ALONG: neighbours are neighbours there too."""
    elements = gl.to_tensor(count).to(gl.int64)
    if not IS_ALONG:
        elements *= stride // UNIT * UNIT
    return elements


@gluon.jit
def tile_at(n_first, stride, ALONG_DEPTH: gl.constexpr, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    """Offsets within a tile, which of its rows of a, or columns of b, are there, and its depths."""
    DEPTH: gl.constexpr = 1 if ALONG_DEPTH else 0  # which dimension is
    firsts = gl.arange(0, TILE[1 - DEPTH], gl.SliceLayout(DEPTH, LAYOUT))
    depths = gl.arange(0, TILE[DEPTH], gl.SliceLayout(1 - DEPTH, LAYOUT))
    stride = stride // UNIT * UNIT  # which it is, and the compiler now knows; so too below
    if ALONG_DEPTH:
        offsets = (firsts * stride)[:, None] + depths[None, :]
    else:
        n_first = n_first // UNIT * UNIT
        offsets = (depths * stride)[:, None] + firsts[None, :]
    return offsets, firsts < n_first, depths


@gluon.jit
def loaded(ptr, tile, remaining, ALONG_DEPTH: gl.constexpr):
    offsets, in_firsts, depths = tile
    in_depth = depths < remaining
    mask = in_firsts[:, None] & in_depth[None, :] if ALONG_DEPTH else in_depth[:, None] & in_firsts[None, :]
    return gl.load(ptr + offsets, mask=mask, other=0.0)


@gluon.jit
def start_product(a_planes, b_planes, zeros):
    """The product of what was split into high, middle and low, from the smallest parts to the largest, begun."""
    a_high, a_middle, a_low = a_planes
    b_high, b_middle, b_low = b_planes
    product = warpgroup_mma(a_low, b_high, zeros, use_acc=False, is_async=True)
    product = warpgroup_mma(a_middle, b_middle, product, is_async=True)
    product = warpgroup_mma(a_high, b_low, product, is_async=True)
    product = warpgroup_mma(a_middle, b_high, product, is_async=True)
    product = warpgroup_mma(a_high, b_middle, product, is_async=True)
    return warpgroup_mma(a_high, b_high, product, is_async=True)


@gluon.jit
def accumulated(
    a_ptr, b_ptr, a_tile, b_tile, a_step, b_step, a_planes, b_planes, remaining, steps,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, SUMS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """The sum of the products of all steps. Those of each step leave the tensor cores before they are added, for the
    reason that `separately_added` has."""
    put_planes(loaded(a_ptr, a_tile, remaining, A_ALONG), a_planes, 0)
    put_planes(loaded(b_ptr, b_tile, remaining, B_ALONG), b_planes, 0)
    a_ptr += a_step
    b_ptr += b_step
    a = loaded(a_ptr, a_tile, remaining - BLOCK_K, A_ALONG)
    b = loaded(b_ptr, b_tile, remaining - BLOCK_K, B_ALONG)
    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)
    for step in range(steps):
        slot = step % 2
        fence_async_shared()
        thread_barrier()
        product = start_product(planes_in(a_planes, slot, not A_ALONG), planes_in(b_planes, slot, B_ALONG), zeros)
        if step + 1 < steps:
            put_planes(a, a_planes, 1 - slot)
            put_planes(b, b_planes, 1 - slot)
            a_ptr += a_step
            b_ptr += b_step
            a = loaded(a_ptr, a_tile, remaining - (step + 2) * BLOCK_K, A_ALONG)
            b = loaded(b_ptr, b_tile, remaining - (step + 2) * BLOCK_K, B_ALONG)
        total += warpgroup_mma_wait(0, deps=[product])
    return total


@gluon.jit
def of_high_parts(
    a_ptr, b_ptr, a_tile, b_tile, a_step, b_step, a_planes, b_planes, remaining, steps,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, SUMS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """The sum of the products of high parts alone."""
    a_high, _, _ = planes_in(a_planes, 0, not A_ALONG)
    b_high, _, _ = planes_in(b_planes, 0, B_ALONG)
    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)
    for step in range(steps):
        a = loaded(a_ptr + step * a_step, a_tile, remaining - step * BLOCK_K, A_ALONG)
        b = loaded(b_ptr + step * b_step, b_tile, remaining - step * BLOCK_K, B_ALONG)
        thread_barrier()  # nobody multiplies any more what is there
        a_planes[0].index(0).store(as_bf16(a))
        b_planes[0].index(0).store(as_bf16(b))
        fence_async_shared()
        thread_barrier()
        total = warpgroup_mma_wait(0, deps=[warpgroup_mma(a_high, b_high, total, is_async=True)])
    return total


@gluon.jit(do_not_specialize=["n_rows", "n_columns", "depth", "n_matrices", "steps_per_share"])
def matmul_hopper_exact_kernel(
    a_ptr, b_ptr, y_ptr, addend_ptr, bias_ptr, a_batch_stride, a_stride, b_batch_stride, b_stride,
    y_batch_stride, y_row_stride, y_column_stride, bias_stride,
    n_rows, n_columns, depth, n_matrices, steps_per_share,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, COLUMNS_MULTIPLE: gl.constexpr, ACTIVATION: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Strides of a and b are of the batch, and of what does not lie along memory; ALONG: depth does.

    What lies along memory has a multiple of UNIT elements. A share is a part of the depth.
    """
    WARPS: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    A_TILE: gl.constexpr = [BLOCK_M, BLOCK_K] if A_ALONG else [BLOCK_K, BLOCK_M]
    B_TILE: gl.constexpr = [BLOCK_N, BLOCK_K] if B_ALONG else [BLOCK_K, BLOCK_N]
    A_LANES: gl.constexpr = A_TILE[1] // UNIT if A_TILE[1] < 32 * UNIT else 32
    B_LANES: gl.constexpr = B_TILE[1] // UNIT if B_TILE[1] < 32 * UNIT else 32
    A_LAYOUT: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // A_LANES, A_LANES], [WARPS, 1], [1, 0])
    B_LAYOUT: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // B_LANES, B_LANES], [WARPS, 1], [1, 0])
    n_column_tiles = (n_columns + BLOCK_N - 1) // BLOCK_N
    tiles_per_matrix = (n_rows + BLOCK_M - 1) // BLOCK_M * n_column_tiles
    tile, outer = gl.program_id(0) % tiles_per_matrix, gl.program_id(0) // tiles_per_matrix
    share, matrix = outer // n_matrices, gl.cast(outer % n_matrices, gl.int64)
    first_row, first_column = tile // n_column_tiles * BLOCK_M, tile % n_column_tiles * BLOCK_N
    start = share * steps_per_share * BLOCK_K
    remaining = gl.minimum(depth - start, steps_per_share * BLOCK_K)
    if A_ALONG or B_ALONG:
        remaining = remaining // UNIT * UNIT
    steps = (remaining + BLOCK_K - 1) // BLOCK_K
    a_ptr += matrix * a_batch_stride + distance(start, a_stride, A_ALONG)
    a_ptr += distance(first_row, a_stride, not A_ALONG)
    b_ptr += matrix * b_batch_stride + distance(start, b_stride, B_ALONG)
    b_ptr += distance(first_column, b_stride, not B_ALONG)
    a_tile = tile_at(n_rows - first_row, a_stride, A_ALONG, A_TILE, A_LAYOUT)
    b_tile = tile_at(n_columns - first_column, b_stride, B_ALONG, B_TILE, B_LAYOUT)
    a_step, b_step = distance(BLOCK_K, a_stride, A_ALONG), distance(BLOCK_K, b_stride, B_ALONG)
    a_planes, b_planes = room_for_planes(A_TILE), room_for_planes(B_TILE)
    total = accumulated(
        a_ptr, b_ptr, a_tile, b_tile, a_step, b_step, a_planes, b_planes, remaining, steps,
        A_ALONG, B_ALONG, SUMS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    thread_barrier()  # nobody multiplies any more: from here on shared memory may be used for other things
    # Corrections that overflow or meet an infinity mean nothing: the products of the high parts say what comes out. A
    # sum that has one is not finite, so that is looked for once, and hardly ever found.
    is_finite = gl.abs(total) < float("inf")
    if gl.min(gl.min(is_finite.to(gl.int32), 1), 0) == 0:
        high = of_high_parts(
            a_ptr, b_ptr, a_tile, b_tile, a_step, b_step, a_planes, b_planes, remaining, steps,
            A_ALONG, B_ALONG, SUMS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        total = gl.where((gl.abs(total) < float("inf")) | (gl.abs(high) < float("inf")), total, high)
    n_columns = n_columns // COLUMNS_MULTIPLE * COLUMNS_MULTIPLE
    rows = first_row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, SUMS))
    columns = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + columns.to(gl.int64) * bias_stride, mask=columns < n_columns, other=0.0)
        total += bias.to(gl.float32)[None, :]
    if ACTIVATION == "relu":
        total = gl.where(total < 0, 0.0, total)  # unlike a maximum, this lets NaN through
    offsets = (rows.to(gl.int64) * y_row_stride)[:, None] + (columns.to(gl.int64) * y_column_stride)[None, :]
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    if addend_ptr is not None:  # laid out as y, and given only where there are no shares
        total += gl.load(addend_ptr + matrix * y_batch_stride + offsets, mask=mask, other=0.0).to(gl.float32)
    y_ptr += gl.cast(share, gl.int64) * n_matrices * n_rows * n_columns + matrix * y_batch_stride
    gl.store(y_ptr + offsets, total, mask=mask)
