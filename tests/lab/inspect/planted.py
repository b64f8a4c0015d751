# mypy: ignore-errors
"""Kernels with known faults and known costs, and their correct versions."""

import triton
import triton.language as tl


@triton.jit
def three_pass_layer_norm(x_ptr, w_ptr, y_ptr, n_columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = 0.0
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mean += tl.sum(tl.load(x_ptr + row * n_columns + columns, mask=columns < n_columns, other=0.0), axis=0)
    mean = mean / n_columns
    variance = 0.0
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_columns + columns, mask=columns < n_columns, other=0.0)
        x = tl.where(columns < n_columns, x - mean, 0.0)
        variance += tl.sum(x * x, axis=0)
    scale = 1 / tl.sqrt(variance / n_columns + eps)
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_columns
        x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0)
        w = tl.load(w_ptr + columns, mask=mask, other=0.0)
        tl.store(y_ptr + row * n_columns + columns, (x - mean) * scale * w, mask=mask)


@triton.jit
def column_walk(x_ptr, y_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (places % n_rows) * n_columns + places // n_rows)
    tl.store(y_ptr + places, x)


@triton.jit
def quantised(x_ptr, y_ptr, scale, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, (tl.load(x_ptr + places) * scale).to(tl.int8))


@triton.jit
def looks_back(x_ptr, y_ptr, sums_ptr, flags_ptr, BLOCK: tl.constexpr):
    number = tl.program_id(0)
    places = number * BLOCK + tl.arange(0, BLOCK)
    sums = tl.cumsum(tl.load(x_ptr + places))
    before = 0.0
    if number > 0:
        while tl.atomic_cas(flags_ptr + number, 1, 1) != 1:
            pass
        before = tl.load(sums_ptr + number)
    tl.store(y_ptr + places, before + sums)
    tl.store(sums_ptr + number + 1, before + tl.max(sums))
    tl.atomic_xchg(flags_ptr + number + 1, 1)


@triton.jit
def three_columns(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places * 16)
    x += tl.load(x_ptr + places * 16 + 5)
    tl.store(y_ptr + places, x + tl.load(x_ptr + places * 16 + 10))


@triton.jit
def tile_transpose(x_ptr, y_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows[:, None] < n_rows) & (columns[None, :] < n_columns)
    x = tl.load(x_ptr + rows[:, None] * n_columns + columns[None, :], mask=mask)
    tl.store(y_ptr + columns[None, :] * n_rows + rows[:, None], x, mask=mask)


@triton.jit
def off_by_one(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places + 1, mask=places < n_elements)  # one too far
    tl.store(y_ptr + places, x, mask=places < n_elements)


@triton.jit
def largest_of_each_remainder(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.atomic_max(y_ptr + offsets % 64, x, mask=mask)


@triton.jit
def copy(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_elements
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.jit
def positional_masks(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n_elements
    tl.store(y_ptr + places, tl.load(x_ptr + places, inside, 0.0), inside)


@triton.jit
def inclusive_bound(x_ptr, y_ptr, last, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places <= last
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.jit
def overlapping_stores(y_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    places = program * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, places + program)  # half of it is the next program's


@triton.jit
def overlapping_same_values(y_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, places)


@triton.jit
def overlapping_atomics(y_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + places, 1.0)


@triton.jit
def shift_in_place(x_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places + 1, mask=places + 1 < n_elements)  # the neighbour's
    tl.store(x_ptr + places, x, mask=places < n_elements)


@triton.jit
def locked_sum(x_ptr, total_ptr, lock_ptr, BLOCK: tl.constexpr):
    x = tl.sum(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr, tl.load(total_ptr) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def sum_under_own_lock(x_ptr, total_ptr, locks_ptr, BLOCK: tl.constexpr):
    x = tl.sum(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    lock_ptr = locks_ptr + tl.program_id(0)  # every program takes another lock
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr, tl.load(total_ptr) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def sum_under_open_lock(x_ptr, total_ptr, lock_ptr, BLOCK: tl.constexpr):
    x = tl.sum(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    while tl.atomic_cas(lock_ptr, 0, 0) == 1:  # takes nothing: the lock stays 0
        pass
    tl.store(total_ptr, tl.load(total_ptr) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def reads_the_block_before(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + places, places)
    tl.store(y_ptr + places, tl.load(x_ptr + places - BLOCK, mask=places >= BLOCK, other=0))  # another program's


@triton.jit
def drawn_ticket(counter_ptr, y_ptr):
    ticket = tl.atomic_add(counter_ptr, 1)
    tl.store(y_ptr, ticket)  # a ticket is no lock


@triton.jit
def last_one_sums(counter_ptr, parts_ptr, y_ptr, COUNT: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if tl.atomic_add(counter_ptr, 1) == COUNT - 1:
        tl.store(y_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, COUNT))))


@triton.jit
def clashing_lanes(y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places // 2, places)


@triton.jit
def wide_rows(x_ptr, y_ptr, row_stride, BLOCK: tl.constexpr):
    places = tl.program_id(0) * row_stride + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places) * 2)


@triton.jit
def far_rows(x_ptr, y_ptr, row_stride, n_elements, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = row * row_stride + tl.arange(0, BLOCK)  # wraps in the last program
    x = tl.load(x_ptr + places, mask=places < n_elements, other=0.0)
    tl.store(y_ptr + row * BLOCK + tl.arange(0, BLOCK), x)


@triton.jit
def one_large_block(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n_elements, other=0.0)
    tl.store(y_ptr + places, x * tl.rsqrt(tl.sum(x * x) / n_elements), mask=places < n_elements)


@triton.jit
def type_changes(y_ptr, n_steps):
    total = 0
    for _ in range(n_steps):
        total = total + 1.5  # an integer before the loop
    tl.store(y_ptr, total)


@triton.jit
def unmasked_double(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places) * 2)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows, columns, inner = tl.arange(0, BLOCK), tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner[:, None]) * BLOCK + columns[None, :])
        total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * BLOCK + columns[None, :], total)


@triton.jit
def single_product(a_ptr, b_ptr, c_ptr, times, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    a, b = tl.load(a_ptr + places), tl.load(b_ptr + places)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in range(times):
        total = tl.dot(a, b, total, input_precision=PRECISION)
    tl.store(c_ptr + places, total)


@triton.autotune(configs=[triton.Config({}, num_warps=8), triton.Config({}, num_warps=2)], key=["n_elements"])
@triton.jit
def tuned_by_warps(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_elements
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 3000}),  # not a power of two
        triton.Config({"BLOCK": 4096}, num_warps=4),
        triton.Config({"BLOCK": 1024}, num_warps=8),
    ],
    key=["n_elements"],
)
@triton.jit
def tuned_copy(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_elements
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.jit
def softmax_without_other(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_columns + columns, mask=columns < n_columns)  # -inf is missing
    exponentials = tl.exp(x - tl.max(x, 0))
    y = exponentials / tl.sum(exponentials, 0)
    tl.store(y_ptr + tl.program_id(0) * n_columns + columns, y, mask=columns < n_columns)


@triton.jit
def row_sum(x_ptr, y_ptr, n_columns, DISCARD: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_columns + columns, mask=columns < n_columns)
    if DISCARD:
        x = tl.where(columns < n_columns, x, 0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(x, 0))


@triton.jit
def variance(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_columns + columns, mask=columns < n_columns)
    mean = tl.sum(x, 0) / n_columns  # zeros would do no harm
    difference = tl.where(columns < n_columns, x - mean, 0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(difference * difference, 0) / n_columns)


@triton.jit
def keep_first(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.where(places < n_elements, tl.load(x_ptr + places), 0.0))


@triton.jit
def race_in_the_middle(y_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    owner = tl.where(program == 4711, 4710, program)
    tl.store(y_ptr + owner * BLOCK + tl.arange(0, BLOCK), program)  # 4711 takes its neighbour's


@triton.jit
def stray_in_the_middle(y_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    if program == 3334:
        program += 1_000_000
    for step in range(tl.program_id(0) % 3):  # three paths
        tl.store(y_ptr + program * BLOCK + step + tl.arange(0, BLOCK), step)  # 3334 strays


@triton.jit
def gather_rows(index_ptr, x_ptr, y_ptr, BLOCK: tl.constexpr):
    row = tl.load(index_ptr + tl.program_id(0))
    tl.store(y_ptr + row * BLOCK + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)))  # rows may repeat


@triton.jit
def descriptor_copy(x, y_ptr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    tl.store(y_ptr + start + tl.arange(0, BLOCK), x.load([start]))


@triton.jit
def not_a_shape(x_ptr):
    tl.store(x_ptr + tl.arange(0, 12), 0.0)


@triton.jit
def add(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    y = tl.load(y_ptr + places, mask=places < n)
    tl.store(z_ptr + places, x + y, mask=places < n)


@triton.jit
def fill(y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def copy_with_descriptors(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [n_elements], [1], [BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [n_elements], [1], [BLOCK])
    start = tl.program_id(0) * BLOCK
    y.store([start], x.load([start]))


@triton.jit
def stores_from_one_program(y_ptr, chosen):
    tl.store(y_ptr + tl.program_id(0), 1.0, mask=tl.program_id(0) == chosen)


@triton.jit
def tuple_copy(ptrs, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(ptrs[1] + offsets, tl.load(ptrs[0] + offsets, mask=mask), mask=mask)


@triton.jit
def table_copy(x_table_ptr, y_table_ptr, reach, SIZE: tl.constexpr, APART: tl.constexpr):
    problem = tl.program_id(0)
    offsets = tl.arange(0, SIZE)
    x_ptr = tl.load(x_table_ptr + problem).to(tl.pointer_type(tl.float32))
    y_ptr = tl.load(y_table_ptr + problem * APART).to(tl.pointer_type(tl.float32))
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets + reach))


@triton.jit
def even_copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:  # noqa: SIM108  # the usual way to write it
        x = tl.load(x_ptr + offsets)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x, mask=offsets < n)


@triton.jit
def even_double(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:  # noqa: SIM108  # the usual way to write it
        x = tl.load(x_ptr + offsets) * 2
    else:
        x = tl.zeros([BLOCK], tl.float32)
    tl.store(y_ptr + offsets, x, mask=offsets < n)
