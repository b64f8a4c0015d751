"""Exact float32 GEMM on Hopper for many rows or a long depth: warp-specialised, with bf16x3 of a in registers.

`planning/exact_on_hopper.py` says when this kernel runs, and lists the kernels that it competes with.

Same arithmetic as `exact_shared` (read that first). There all warps do the same, so the tensor cores idle while a tile
starts, while its sums are added and while it is stored; and a passes through shared memory twice. Here two warpgroups
have 64 rows each of a block of 128. Each splits its rows of a in registers, one step ahead, from where the tensor cores
read them, and runs independently: while one adds or stores, the other multiplies. A third warpgroup splits b for both,
into a ring in shared memory. Where the whole depth of b fits there, b is split once and the program walks over blocks
of rows with it. TMA loads rows of a into a ring of each warpgroup. Warpgroups wait for mbarriers.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from tilesmith.ops.device.hopper import GROUP_WARPS, barriers, hidden_zero
from tilesmith.ops.matmul.hopper.exact_shared import (
    UNIT,
    as_bf16,
    distance,
    first_bits,
    loaded,
    parts_in,
    start_product,
    store_parts,
    tile_at,
)
from tilesmith.toolchain.gluon import fetch, thread_barrier

GROUPS = gl.constexpr(2)  # warpgroups that multiply
ROWS = gl.constexpr(64)  # rows of a warpgroup
REGISTERS = gl.constexpr(216)  # per thread that multiplies
SPLITTING_REGISTERS = gl.constexpr(72)


class Tensors(NamedTuple):
    """The tensors of a call. a is a descriptor; a_ptr points to the same memory."""

    a: Any
    a_ptr: Any
    b_ptr: Any
    a_stride: Any
    b_stride: Any
    y_ptr: Any


class Memory(NamedTuple):
    """Shared memory: rows of a for each warpgroup, the three parts of b, and the mbarriers of both rings."""

    a_tiles: Any  # [GROUPS · A_SLOTS, ROWS, BLOCK_K], or transposed
    b_parts: Any  # high, middle and low: [B_SLOTS, BLOCK_K, BLOCK_N] each, or transposed
    a_ready: Any
    b_ready: Any
    b_free: Any


class Work(NamedTuple):
    """The work of one program: every n_walkers-th block of rows from `walker` on, over its split of the depth."""

    walker: Any
    n_walkers: Any
    turns: Any  # blocks of rows
    start: Any  # first element of the depth
    steps: Any  # of BLOCK_K elements
    remaining: Any  # elements of the depth


class Epilogue(NamedTuple):
    """The epilogue and the sizes of y."""

    bias_ptr: Any
    addend_ptr: Any
    n_rows: Any
    n_columns: Any
    y_row_stride: Any


@gluon.jit(do_not_specialize=["n_rows", "n_columns", "depth", "steps_per_split", "n_walkers"])
def matmul_hopper_rows_kernel(
    a, a_ptr, b_ptr, y_ptr, addend_ptr, bias_ptr, a_stride, b_stride, y_row_stride,
    n_rows, n_columns, depth, steps_per_split, n_walkers,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, ACTIVATION: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, A_SLOTS: gl.constexpr, B_SLOTS: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """Compute one column of tiles for every n_walkers-th block of rows.

    `a` is a descriptor of ROWS × BLOCK_K, or transposed as a lies in memory; a_ptr points to the same memory. Strides,
    ALONG and splits: as in `exact_shared`. y has contiguous rows of whole UNITs. HELD: all steps of a split fit into
    the B_SLOTS stages of b.
    """
    n_column_tiles = (n_columns + BLOCK_N - 1) // BLOCK_N
    n_blocks = (n_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    outer = gl.program_id(0) // n_column_tiles
    first_column = gl.program_id(0) % n_column_tiles * BLOCK_N
    walker, split = outer % n_walkers, outer // n_walkers
    start = split * steps_per_split * BLOCK_K
    remaining = gl.maximum(gl.minimum(depth - start, steps_per_split * BLOCK_K), 0)
    if A_ALONG or B_ALONG:
        remaining = remaining // UNIT * UNIT
    steps = (remaining + BLOCK_K - 1) // BLOCK_K
    turns = (n_blocks - walker + n_walkers - 1) // n_walkers

    B_TILE: gl.constexpr = [BLOCK_N, BLOCK_K] if B_ALONG else [BLOCK_K, BLOCK_N]
    B_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(B_TILE, gl.bfloat16)
    high = gl.allocate_shared_memory(gl.bfloat16, [B_SLOTS, B_TILE[0], B_TILE[1]], B_LAYOUT)
    middle = gl.allocate_shared_memory(gl.bfloat16, [B_SLOTS, B_TILE[0], B_TILE[1]], B_LAYOUT)
    low = gl.allocate_shared_memory(gl.bfloat16, [B_SLOTS, B_TILE[0], B_TILE[1]], B_LAYOUT)
    a_tiles = gl.allocate_shared_memory(gl.float32, [GROUPS * A_SLOTS, a.block_shape[0], a.block_shape[1]], a.layout)
    a_ready = barriers(GROUPS * A_SLOTS, 1)
    b_ready = barriers(B_SLOTS, 1)
    b_free = barriers(B_SLOTS, GROUPS)
    fence_async_shared()
    b_parts = (high, middle, low)
    y_ptr += gl.cast(split, gl.int64) * n_rows * (n_columns // UNIT * UNIT)
    work = Work(walker, n_walkers, turns, start, steps, remaining)
    memory = Memory(a_tiles, b_parts, a_ready, b_ready, b_free)
    epilogue = Epilogue(bias_ptr, addend_ptr, n_rows, n_columns, y_row_stride)
    tensors = Tensors(a, a_ptr, b_ptr, a_stride, b_stride, y_ptr)
    gl.warp_specialize(
        [
            (multiply, (tensors, memory, work, epilogue, first_column, A_ALONG, B_ALONG, ACTIVATION, HELD, 0)),
            (multiply, (tensors, memory, work, epilogue, first_column, A_ALONG, B_ALONG, ACTIVATION, HELD, 1)),
            (split_b, (b_ptr, b_stride, memory, work, first_column, n_columns, B_ALONG, BLOCK_N, BLOCK_K, HELD)),
        ],
        [GROUP_WARPS, GROUP_WARPS],
        [REGISTERS, SPLITTING_REGISTERS],
    )


@gluon.jit
def split_b(
    b_ptr, b_stride, memory, work, first_column, n_columns,
    B_ALONG: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """Run the warpgroup that splits b: every step once if HELD, else once for each block of rows."""
    TILE: gl.constexpr = [BLOCK_N, BLOCK_K] if B_ALONG else [BLOCK_K, BLOCK_N]
    LANES: gl.constexpr = TILE[1] // UNIT if TILE[1] < 32 * UNIT else 32
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // LANES, LANES], [GROUP_WARPS, 1], [1, 0])
    B_SLOTS: gl.constexpr = memory.b_ready.shape[0]
    b_ptr += distance(work.start, b_stride, B_ALONG) + distance(first_column, b_stride, not B_ALONG)
    tile = tile_at(n_columns - first_column, b_stride, B_ALONG, TILE, LAYOUT)
    b_step = distance(BLOCK_K, b_stride, B_ALONG)
    b = loaded(b_ptr, tile, work.remaining, B_ALONG)  # [TILE]
    step = 0
    for i in range(work.steps if HELD else work.turns * work.steps):
        slot = i % B_SLOTS
        if not HELD:
            mbarrier.wait(memory.b_free.index(slot), (i // B_SLOTS + 1) % 2)  # the first round finds every stage free
        store_parts(b, memory.b_parts, slot)
        step = gl.where(step + 1 < work.steps, step + 1, 0)
        b = loaded(b_ptr + step * b_step, tile, work.remaining - step * BLOCK_K, B_ALONG)
        fence_async_shared()
        thread_barrier()
        mbarrier.arrive(memory.b_ready.index(slot), count=1)


@gluon.jit
def load_rows(
    a, memory, work, number, A_ALONG: gl.constexpr, BLOCK_K: gl.constexpr, A_SLOTS: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Start loading this warpgroup's rows for the step of this number, counted through blocks, if there is one."""
    slot = GROUP * A_SLOTS + number % A_SLOTS
    is_one = number < work.turns * work.steps
    turn = number // gl.maximum(work.steps, 1)
    row = ((work.walker + turn * work.n_walkers) * GROUPS + GROUP) * ROWS
    place = work.start + (number - turn * work.steps) * BLOCK_K
    ready = memory.a_ready.index(slot)
    mbarrier.expect(ready, ROWS * BLOCK_K * 4, pred=is_one)
    if A_ALONG:
        fetch(a, [row, place], ready, memory.a_tiles.index(slot), pred=is_one)
    else:
        fetch(a, [place, row], ready, memory.a_tiles.index(slot), pred=is_one)


@gluon.jit
def parts_of_rows(
    memory, number, LEFT: gl.constexpr, A_ALONG: gl.constexpr, A_SLOTS: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Return high, middle and low parts of the rows for the step of this number, [ROWS, BLOCK_K] each."""
    slot = GROUP * A_SLOTS + number % A_SLOTS
    mbarrier.wait(memory.a_ready.index(slot), number // A_SLOTS % 2)
    tile = memory.a_tiles.index(slot)
    if not A_ALONG:
        tile = tile.permute([1, 0])
    x = tile.load(LEFT)  # [ROWS, BLOCK_K]
    high = first_bits(x)
    rest = x - high
    middle = first_bits(rest)
    return as_bf16(high), as_bf16(middle), as_bf16(rest - middle)


@gluon.jit
def multiply(
    tensors, memory, work, epilogue, first_column, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr,
    ACTIVATION: gl.constexpr, HELD: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Run a warpgroup that multiplies.

    The products of each step leave the tensor cores before they are added: `separately_added` says why.
    """
    A_SLOTS: gl.constexpr = memory.a_ready.shape[0] // GROUPS
    B_SLOTS: gl.constexpr = memory.b_ready.shape[0]
    BLOCK_N: gl.constexpr = memory.b_parts[0].shape[1] if B_ALONG else memory.b_parts[0].shape[2]
    BLOCK_K: gl.constexpr = memory.b_parts[0].shape[2] if B_ALONG else memory.b_parts[0].shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_N, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    for first in gl.static_range(A_SLOTS):
        load_rows(tensors.a, memory, work, first, A_ALONG, BLOCK_K, A_SLOTS, GROUP)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, SUMS)  # [ROWS, BLOCK_N]
    for turn in range(work.turns):
        total = gl.zeros([ROWS, BLOCK_N], gl.float32, SUMS)  # [ROWS, BLOCK_N]
        for step in range(work.steps):
            number = turn * work.steps + step + hidden_zero()
            rows = parts_of_rows(memory, number, LEFT, A_ALONG, A_SLOTS, GROUP)  # 3 of [ROWS, BLOCK_K]
            slot = step if HELD else number % B_SLOTS
            mbarrier.wait(memory.b_ready.index(slot), 0 if HELD else number // B_SLOTS % 2)
            product = start_product(rows, parts_in(memory.b_parts, slot, B_ALONG), zeros)
            # While the tensor cores multiply, TMA refills the stage of these rows.
            load_rows(tensors.a, memory, work, number + A_SLOTS, A_ALONG, BLOCK_K, A_SLOTS, GROUP)
            product = warpgroup_mma_wait(0, deps=[product])  # [ROWS, BLOCK_N]
            if not HELD:
                mbarrier.arrive(memory.b_free.index(slot), count=1)
            total += product
        first_row = ((work.walker + turn * work.n_walkers) * GROUPS + GROUP) * ROWS
        store_rows(total, tensors, work, epilogue, first_row, first_column, A_ALONG, B_ALONG, ACTIVATION, SUMS)


@gluon.jit
def of_high_parts(
    tensors, work, first_row, first_column, n_rows, n_columns,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, BLOCK_N: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Return the sum of the products of high parts alone, [ROWS, BLOCK_N].

    The case is rare, and the parts of b may be overwritten, so the tensor cores are not used.
    """
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))  # [ROWS]
    columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))  # [BLOCK_N]
    a_ptr = tensors.a_ptr + distance(first_row, tensors.a_stride, not A_ALONG)
    b_ptr = tensors.b_ptr + distance(first_column, tensors.b_stride, not B_ALONG)
    total = gl.zeros([ROWS, BLOCK_N], gl.float32, SUMS)
    for i in range(work.remaining):
        zero = hidden_zero()
        a_places, b_places = rows + zero, columns + zero
        if A_ALONG:
            a_places *= tensors.a_stride
        if B_ALONG:
            b_places *= tensors.b_stride
        left_ptr = a_ptr + distance(work.start + i, tensors.a_stride, A_ALONG) + a_places
        right_ptr = b_ptr + distance(work.start + i, tensors.b_stride, B_ALONG) + b_places
        left = gl.load(left_ptr, mask=rows + first_row < n_rows, other=0.0)  # [ROWS]
        right = gl.load(right_ptr, mask=columns + first_column < n_columns, other=0.0)  # [BLOCK_N]
        total += first_bits(left)[:, None] * first_bits(right)[None, :]
    return total


@gluon.jit
def store_rows(
    total, tensors, work, epilogue, first_row, first_column, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr,
    ACTIVATION: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to the sums, [ROWS, BLOCK_N], and store them."""
    BLOCK_N: gl.constexpr = total.shape[1]
    # They are multiples already: the division tells the compiler, which does not know it in every warpgroup.
    first_column = (first_column + hidden_zero()) // BLOCK_N * BLOCK_N
    n_columns = epilogue.n_columns // UNIT * UNIT
    y_row_stride = epilogue.y_row_stride // UNIT * UNIT
    rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))  # [ROWS]
    columns = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))  # [BLOCK_N], as the bias
    offsets = (rows.to(gl.int64) * y_row_stride)[:, None] + columns[None, :]
    mask = (rows < epilogue.n_rows)[:, None] & (columns < n_columns)[None, :]  # [ROWS, BLOCK_N], as the addend
    # As in `exact_shared`: corrections that overflow or meet an infinity mean nothing.
    is_finite = gl.abs(total) < float("inf")
    if gl.min(gl.min(is_finite.to(gl.int32), 1), 0) == 0:
        gl.store(tensors.y_ptr + offsets, total, mask=mask)  # registers do not hold both
        # [ROWS, BLOCK_N]
        high = of_high_parts(
            tensors, work, first_row, first_column, epilogue.n_rows, n_columns, A_ALONG, B_ALONG, BLOCK_N, SUMS
        )
        total = gl.load(tensors.y_ptr + offsets, mask=mask, other=0.0)
        total = gl.where((gl.abs(total) < float("inf")) | (gl.abs(high) < float("inf")), total, high)
    if epilogue.bias_ptr is not None:
        bias = gl.load(epilogue.bias_ptr + columns, mask=columns < n_columns, other=0.0)
        total += bias.to(gl.float32)[None, :]
    if ACTIVATION == "relu":
        total = gl.where(total < 0, 0.0, total)  # unlike a maximum, this lets NaN through
    if epilogue.addend_ptr is not None:  # has the layout of y; never with split-K
        total += gl.load(epilogue.addend_ptr + offsets, mask=mask, other=0.0).to(gl.float32)
    gl.store(tensors.y_ptr + offsets, total, mask=mask)
