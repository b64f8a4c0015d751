# mypy: ignore-errors
"""Kernels with faults that need the view, the descriptor, the hints or the order of threads; and correct versions."""

import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, row_stride, COLUMNS: tl.constexpr, READ: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, READ)
    x = tl.load(x_ptr + row * row_stride + columns)  # READ columns, of which COLUMNS are the view's
    x = tl.where(columns < COLUMNS, x, 0.0)
    tl.store(y_ptr + row, tl.sum(x, 0))


@triton.jit
def rows_as_if_contiguous(x_ptr, y_ptr, COLUMNS: tl.constexpr):
    places = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + places)  # ignores the stride
    tl.store(y_ptr + places, x)


@triton.jit
def fill_as_if_contiguous(y_ptr, COLUMNS: tl.constexpr):
    places = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(y_ptr + places, 1.0)  # ignores the stride


@triton.jit
def heads(x, y, LENGTH: tl.constexpr, STEP: tl.constexpr):
    head = tl.program_id(0)
    tile = x.load([head * STEP, 0]).T.T  # STEP should be LENGTH
    y.store([head * LENGTH, 0], tile * 2)


@triton.jit
def hinted_copy(x_ptr, y_ptr, start, n, BLOCK: tl.constexpr):
    places = start + tl.arange(0, BLOCK)
    places = tl.multiple_of(places, 16)  # start decides
    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(y_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def hinted_tile(x_ptr, y_ptr, start, stride, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x_ptrs = tl.multiple_of(x_ptr + start + rows * stride + columns, [16, 16])  # start and stride decide
    tl.store(y_ptr + rows * BLOCK + columns, tl.load(x_ptrs))


@triton.jit
def hinted_wrap(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK) % n
    places = tl.max_contiguous(tl.multiple_of(places, BLOCK), BLOCK)  # n decides
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + places * stride))


@triton.jit
def hinted_constancy(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK) // width
    places = tl.max_constancy(places, 4)  # width decides
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + places))


@triton.jit
def assumed_copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.assume(n > 8)  # n decides
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=places < n, other=0.0))


@triton.jit
def reversed_through_memory(x_ptr, y_ptr, BARRIER: tl.constexpr, SUM: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))
    if BARRIER:
        tl.debug_barrier()
    total = 0.0
    if SUM:
        total = tl.sum(tl.load(x_ptr + places), 0)
    reverse = tl.load(y_ptr + BLOCK - 1 - places)  # other threads' elements
    tl.store(x_ptr + places, reverse + total)


@triton.jit
def shifted_in_place(x_ptr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places + SHIFT)
    tl.store(x_ptr + places, x)  # another thread may not have loaded yet


@triton.jit
def shifted_offsets(x_ptr, y_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0) << 30
    places = row * 4 + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))


@triton.jit
def truncated_offset(x_ptr, y_ptr, row_stride, BLOCK: tl.constexpr):
    start = (tl.program_id(0).to(tl.int64) * row_stride).to(tl.int32)  # does not fit
    places = start + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))


@triton.jit
def single_dot(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    c = tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places), input_precision=PRECISION)  # PRECISION decides
    tl.store(c_ptr + places, c)


@triton.jit
def half_accumulator(x_ptr, y_ptr, n_rows, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], ACCUMULATE)
    for row in range(n_rows):
        total += tl.load(x_ptr + row * BLOCK + columns).to(ACCUMULATE)  # rounds at every step
    tl.store(y_ptr + columns, total)


@triton.jit
def row_sum(x_ptr, y_ptr, SUM: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y_ptr + tl.program_id(0), tl.sum(x.to(SUM), 0))  # in which format


@triton.jit
def naive_softmax(x_ptr, y_ptr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places)
    if SHIFT:
        x = x - tl.max(x, 0)
    exponentials = tl.exp(x)  # overflows without a shift
    tl.store(y_ptr + places, exponentials / tl.sum(exponentials, 0))


@triton.jit
def variance(x_ptr, y_ptr, TWO_PASS: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    mean = tl.sum(x, 0) / BLOCK
    if TWO_PASS:
        result = tl.sum((x - mean) * (x - mean), 0) / BLOCK
    else:
        square = tl.sum(x * x, 0) / BLOCK
        result = square - mean * mean  # cancels
    tl.store(y_ptr + tl.program_id(0), result)


@triton.jit
def to_half(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places) * 3
    tl.store(y_ptr + places, x.to(tl.float16))  # up to 65504


@triton.jit
def nan_in_masked_lanes(x_ptr, y_ptr, n, DISCARD: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n, other=float("nan"))
    if DISCARD:
        x = tl.where(lanes < n, x, 0.0)
    tl.store(y_ptr, tl.sum(x, 0))


@triton.jit
def counted_rows(x_ptr, index_ptr, y_ptr, count_ptr, row_stride, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    tl.store(count_ptr + program, tl.load(count_ptr + program) + 1)
    row = tl.load(index_ptr + program).to(tl.int32) * row_stride  # may not fit 32 bits
    x = tl.load(x_ptr + row + tl.arange(0, BLOCK))
    tl.store(y_ptr + program * BLOCK + tl.arange(0, BLOCK), x)


@triton.jit
def add_without_atomic(y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(y_ptr + places, mask=places < n) + 1.0, mask=places < n)


@triton.jit
def infinities_that_move(x_ptr, old_ptr, y_ptr, n, HOW: tl.constexpr):
    places = tl.arange(0, 64)
    x = tl.load(x_ptr + places, mask=places < n, other=float("-inf"))
    if HOW == "sort":
        x = tl.sort(x)
    elif HOW == "transpose":
        x = tl.reshape(tl.trans(tl.reshape(x, (8, 8))), (64,))
    elif HOW == "split and join":
        even, odd = tl.split(tl.reshape(x, (32, 2)))
        x = tl.reshape(tl.join(odd, even), (64,))
    elif HOW == "gather":
        x = tl.gather(x, 63 - places, 0)
    elif HOW == "atomic":
        x = tl.atomic_add(old_ptr + places, x)
    tl.store(y_ptr + places, x)
