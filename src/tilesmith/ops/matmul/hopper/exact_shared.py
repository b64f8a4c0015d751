"""Exact float32 GEMM on Hopper: operands are split into bf16x3 in shared memory, one step ahead of the tensor cores.

Same computation as the pointer kernel with BF16X3="here" (read that first). There the tensor cores wait while a tile is
split. Here a program starts the six products of a step, and while they run it splits the next step into the other half
of the shared memory and loads the step after that.

Measurements: `planning/exact_on_hopper.py`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from tilesmith.toolchain.gluon import thread_barrier

UNIT = gl.constexpr(4)  # elements of one load


@gluon.jit
def first_bits(x):
    """Return float32 with the first 16 bits of x, and zeros behind them."""
    return (x.to(gl.uint32, bitcast=True) & 0xFFFF0000).to(gl.float32, bitcast=True)


@gluon.jit
def as_bf16(x):
    """Return the first 16 bits of float32 as bf16."""
    return (x.to(gl.uint32, bitcast=True) >> 16).to(gl.uint16).to(gl.bfloat16, bitcast=True)


@gluon.jit
def room_for_parts(TILE: gl.constexpr):
    """Return shared memory for high, middle and low parts of two tiles, used in turn.

    Each part has its own allocation, so the compiler knows that storing one leaves the others as they are.
    """
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(TILE, gl.bfloat16)
    high = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    middle = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    low = gl.allocate_shared_memory(gl.bfloat16, [2, TILE[0], TILE[1]], LAYOUT)
    return high, middle, low


@gluon.jit
def store_parts(x, parts, slot):
    """Split the tile x as `device/bf16x3.py` does, and store the three parts. All have the shape of x."""
    high = first_bits(x)
    rest = x - high
    middle = first_bits(rest)
    parts[0].index(slot).store(as_bf16(high))
    parts[1].index(slot).store(as_bf16(middle))
    parts[2].index(slot).store(as_bf16(rest - middle))


@gluon.jit
def parts_in(parts, slot, TURNED: gl.constexpr):
    """Return the three parts in this slot, [TILE] each, transposed if TURNED."""
    high, middle, low = parts[0].index(slot), parts[1].index(slot), parts[2].index(slot)
    if TURNED:
        high, middle, low = high.permute([1, 0]), middle.permute([1, 0]), low.permute([1, 0])
    return high, middle, low


@gluon.jit
def distance(count, stride, IS_ALONG: gl.constexpr):
    """Return the offset of `count` elements along a dimension. IS_ALONG: the dimension is contiguous."""
    elements = gl.to_tensor(count).to(gl.int64)
    if not IS_ALONG:
        elements *= stride // UNIT * UNIT
    return elements


@gluon.jit
def tile_at(n_first, stride, ALONG_DEPTH: gl.constexpr, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return offsets within a tile [TILE], the mask of its rows of a or columns of b, and its depths."""
    DEPTH: gl.constexpr = 1 if ALONG_DEPTH else 0  # the dimension of depth
    firsts = gl.arange(0, TILE[1 - DEPTH], gl.SliceLayout(DEPTH, LAYOUT))
    depths = gl.arange(0, TILE[DEPTH], gl.SliceLayout(1 - DEPTH, LAYOUT))
    stride = stride // UNIT * UNIT  # a multiple of UNIT: now the compiler knows, here and below
    if ALONG_DEPTH:
        offsets = (firsts * stride)[:, None] + depths[None, :]
    else:
        n_first = n_first // UNIT * UNIT
        offsets = (depths * stride)[:, None] + firsts[None, :]
    return offsets, firsts < n_first, depths


@gluon.jit
def loaded(ptr, tile, remaining, ALONG_DEPTH: gl.constexpr):
    """Return a tile [TILE], with zeros beyond its rows or columns and beyond the remaining depth."""
    offsets, in_firsts, depths = tile
    in_depth = depths < remaining
    mask = in_firsts[:, None] & in_depth[None, :] if ALONG_DEPTH else in_depth[:, None] & in_firsts[None, :]
    return gl.load(ptr + offsets, mask=mask, other=0.0)


@gluon.jit
def start_product(a_parts, b_parts, zeros):
    """Start the six products of bf16x3, the smallest first, and return their sum, which is not complete yet.

    Parts of a are [rows, BLOCK_K], parts of b [BLOCK_K, BLOCK_N], the sum is [rows, BLOCK_N].
    """
    a_high, a_middle, a_low = a_parts
    b_high, b_middle, b_low = b_parts
    product = warpgroup_mma(a_low, b_high, zeros, use_acc=False, is_async=True)
    product = warpgroup_mma(a_middle, b_middle, product, is_async=True)
    product = warpgroup_mma(a_high, b_low, product, is_async=True)
    product = warpgroup_mma(a_middle, b_high, product, is_async=True)
    product = warpgroup_mma(a_high, b_middle, product, is_async=True)
    return warpgroup_mma(a_high, b_high, product, is_async=True)


@gluon.jit
def accumulated(
    a_side, b_side, remaining, steps, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, SUMS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Return the sum of the products of all steps, [BLOCK_M, BLOCK_N].

    A side is (pointer, tile, offset of one step, shared memory for its parts). The products of each step leave the
    tensor cores before they are added: `separately_added` says why.
    """
    a_ptr, a_tile, a_step, a_parts = a_side
    b_ptr, b_tile, b_step, b_parts = b_side
    store_parts(loaded(a_ptr, a_tile, remaining, A_ALONG), a_parts, 0)
    store_parts(loaded(b_ptr, b_tile, remaining, B_ALONG), b_parts, 0)
    a_ptr += a_step
    b_ptr += b_step
    a = loaded(a_ptr, a_tile, remaining - BLOCK_K, A_ALONG)  # [BLOCK_M, BLOCK_K], or transposed
    b = loaded(b_ptr, b_tile, remaining - BLOCK_K, B_ALONG)  # [BLOCK_N, BLOCK_K], or transposed
    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)  # [BLOCK_M, BLOCK_N]
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)  # [BLOCK_M, BLOCK_N]
    for step in range(steps):
        slot = step % 2
        fence_async_shared()
        thread_barrier()
        product = start_product(parts_in(a_parts, slot, not A_ALONG), parts_in(b_parts, slot, B_ALONG), zeros)
        if step + 1 < steps:
            store_parts(a, a_parts, 1 - slot)
            store_parts(b, b_parts, 1 - slot)
            a_ptr += a_step
            b_ptr += b_step
            a = loaded(a_ptr, a_tile, remaining - (step + 2) * BLOCK_K, A_ALONG)
            b = loaded(b_ptr, b_tile, remaining - (step + 2) * BLOCK_K, B_ALONG)
        total += warpgroup_mma_wait(0, deps=[product])  # [BLOCK_M, BLOCK_N]
    return total


@gluon.jit
def of_high_parts(
    a_side, b_side, remaining, steps, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, SUMS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Return the sum of the products of high parts alone, [BLOCK_M, BLOCK_N]."""
    a_ptr, a_tile, a_step, a_parts = a_side
    b_ptr, b_tile, b_step, b_parts = b_side
    a_high, _, _ = parts_in(a_parts, 0, not A_ALONG)
    b_high, _, _ = parts_in(b_parts, 0, B_ALONG)
    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)  # [BLOCK_M, BLOCK_N]
    for step in range(steps):
        a = loaded(a_ptr + step * a_step, a_tile, remaining - step * BLOCK_K, A_ALONG)  # [BLOCK_M, BLOCK_K] or turned
        b = loaded(b_ptr + step * b_step, b_tile, remaining - step * BLOCK_K, B_ALONG)  # [BLOCK_N, BLOCK_K] or turned
        thread_barrier()  # all warps have finished with the last tile
        a_parts[0].index(0).store(as_bf16(a))
        b_parts[0].index(0).store(as_bf16(b))
        fence_async_shared()
        thread_barrier()
        total = warpgroup_mma_wait(0, deps=[warpgroup_mma(a_high, b_high, total, is_async=True)])
    return total


@gluon.jit(do_not_specialize=["n_rows", "n_columns", "depth", "n_matrices", "steps_per_split"])
def matmul_hopper_exact_kernel(
    a_ptr, b_ptr, y_ptr, addend_ptr, bias_ptr, a_batch_stride, a_stride, b_batch_stride, b_stride,
    y_batch_stride, y_row_stride, y_column_stride, bias_stride,
    n_rows, n_columns, depth, n_matrices, steps_per_split,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, COLUMNS_MULTIPLE: gl.constexpr, ACTIVATION: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Compute one tile. A split is the part of the depth that one program of a split-K sums.

    Strides of a and b are of the batch, and of the dimension that is not contiguous. ALONG: depth is contiguous. The
    contiguous dimension has a multiple of UNIT elements.
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
    split, matrix = outer // n_matrices, gl.cast(outer % n_matrices, gl.int64)
    first_row, first_column = tile // n_column_tiles * BLOCK_M, tile % n_column_tiles * BLOCK_N
    start = split * steps_per_split * BLOCK_K
    remaining = gl.minimum(depth - start, steps_per_split * BLOCK_K)
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
    a_side = (a_ptr, a_tile, a_step, room_for_parts(A_TILE))
    b_side = (b_ptr, b_tile, b_step, room_for_parts(B_TILE))
    # [BLOCK_M, BLOCK_N]
    total = accumulated(a_side, b_side, remaining, steps, A_ALONG, B_ALONG, SUMS, BLOCK_M, BLOCK_N, BLOCK_K)
    thread_barrier()  # all products are complete: from here on shared memory may hold other things
    # Corrections that overflow or meet an infinity mean nothing: the high parts alone decide the result. Such a sum is
    # not finite, so one test finds the rare case.
    is_finite = gl.abs(total) < float("inf")
    if gl.min(gl.min(is_finite.to(gl.int32), 1), 0) == 0:
        # [BLOCK_M, BLOCK_N]
        high = of_high_parts(a_side, b_side, remaining, steps, A_ALONG, B_ALONG, SUMS, BLOCK_M, BLOCK_N, BLOCK_K)
        total = gl.where((gl.abs(total) < float("inf")) | (gl.abs(high) < float("inf")), total, high)
    n_columns = n_columns // COLUMNS_MULTIPLE * COLUMNS_MULTIPLE
    rows = first_row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, SUMS))  # [BLOCK_M]
    columns = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))  # [BLOCK_N], as the bias
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + columns.to(gl.int64) * bias_stride, mask=columns < n_columns, other=0.0)
        total += bias.to(gl.float32)[None, :]
    if ACTIVATION == "relu":
        total = gl.where(total < 0, 0.0, total)  # unlike a maximum, this lets NaN through
    offsets = (rows.to(gl.int64) * y_row_stride)[:, None] + (columns.to(gl.int64) * y_column_stride)[None, :]
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]  # [BLOCK_M, BLOCK_N], as the addend
    if addend_ptr is not None:  # has the layout of y; never with split-K
        total += gl.load(addend_ptr + matrix * y_batch_stride + offsets, mask=mask, other=0.0).to(gl.float32)
    y_ptr += gl.cast(split, gl.int64) * n_matrices * n_rows * n_columns + matrix * y_batch_stride
    gl.store(y_ptr + offsets, total, mask=mask)
