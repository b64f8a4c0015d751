"""The forward kernels of softmax, exp(x − max x) / Σ exp(x − max x), and the sizes at which each is the default.

`rows.py` has the forms that launch them, in their order, and says how to add one. In all kernels:

- EDGES: a row is its aligned middle, `length` elements from `lead` on, and two edges of less than VECTOR elements
  (`device/aligned_rows.py`).
- ALIGNED_ROWS: the number of inner rows is a multiple of 16.
- SHORT: elements of 16 bits, for which exp2 replaces exp.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.aligned_rows import cut_rows, edges_of, row_maximum, row_sum, tile_pointers
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.overlapped import wait_for_launch_before
from tilesmith.ops.device.row_chunks import (
    chunk_columns,
    chunk_pointers,
    edge_lanes,
    lane_sums,
    load_chunks,
    packed_again,
)
from tilesmith.ops.device.runs import run_size
from tilesmith.ops.device.teams import hear_team, tell_team
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.softmax.row_places import row_pointers, rows_exist, statistics_places
from tilesmith.ops.softmax.rows import Blocks, Held, Kernels, RowConfig, Rows, plan_rows, row_config, rows_along

# The lowest finite numbers, as first maximum: a lane that has only −∞ then adds exp(−∞) = 0, not NaN.
LOWEST = tl.constexpr(-3.4028234663852886e38)
LOWEST_DOUBLE = tl.constexpr(-1.7976931348623157e308)


@triton.jit(do_not_specialize=["inner_rows", "n_groups"])
def softmax_forward_kernel(
    x_ptr, y_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_groups,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Compute whole rows in registers, ROWS at a time. Program p computes the groups p, p + programs, …"""
    SHORT: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth <= 16
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    for group in tl.range(tl.program_id(0), n_groups, tl.num_programs(0), num_stages=PIPELINE):
        in_rows = rows_exist(group, inner_rows, ROWS)
        x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
        y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
        lead, length = cut_rows(y_rows, n_columns, VECTOR, EDGES)
        mask = in_rows & (columns < length)
        x_pointers = tile_pointers(x_rows + lead, columns, x_strides[3], EDGES)
        x = tl.load(x_pointers, mask=mask, other=float("-inf")).to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        largest = row_maximum(x)
        if EDGES:
            edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
            is_edge &= in_rows
            x_edges = tl.load(x_rows + edges, mask=is_edge, other=float("-inf")).to(COMPUTE)  # [ROWS, 2 · VECTOR]
            largest = tl.maximum(largest, row_maximum(x_edges))
        exponentials = exponential(x - largest, SHORT)
        total = row_sum(exponentials)
        if EDGES:
            edge_exponentials = exponential(x_edges - largest, SHORT)
            total += row_sum(edge_exponentials)
        factor = 1 / total
        y_pointers = tile_pointers(y_rows + lead, columns, y_strides[3], EDGES)
        tl.store(y_pointers, (exponentials * factor).to(y_ptr.dtype.element_ty), mask=mask)
        if EDGES:
            tl.store(y_rows + edges, (edge_exponentials * factor).to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["inner_rows", "n_parts"])
def softmax_forward_chunks_kernel(
    x_ptr, y_ptr, words_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr, PACKED: tl.constexpr,
    PARTS: tl.constexpr, OVERLAPS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row, or one part of a row, in registers. With PARTS above 1 the programs of a row wait for each other."""
    SHORT: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth <= 16
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    x_row = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, 1)
    y_row = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, 1)
    lead, length = cut_rows(y_row, n_columns, VECTOR, EDGES)
    start = part * (CHUNKS * BLOCK_SIZE)
    x = load_chunks(x_row + lead + start, length - start, float("-inf"), BLOCK_SIZE, CHUNKS)
    x_again = packed_again(x, PACKED)
    lanes = x[0].to(COMPUTE)
    for place in tl.static_range(1, CHUNKS):
        lanes = tl.maximum(lanes, x[place].to(COMPUTE))
    largest = tl.max(lanes, axis=0)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    is_edge &= part == 0
    edge_exponentials = tl.zeros([BLOCK_SIZE // VECTOR], COMPUTE)
    if EDGES:
        x_edges = tl.load(x_row + edges, mask=is_edge, other=float("-inf")).to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
        largest = tl.maximum(largest, tl.max(x_edges, axis=0))
    largest = tl.maximum(largest, LOWEST)
    exponentials = tl.zeros([BLOCK_SIZE], COMPUTE)
    for place in tl.static_range(CHUNKS):
        exponentials += exponential(x_again[place].to(COMPUTE) - largest, SHORT)
    if EDGES:
        edge_exponentials = exponential(x_edges - largest, SHORT)
    total = tl.sum(lane_sums(exponentials, edge_exponentials, VECTOR, EDGES), axis=0)
    x_again = packed_again(x_again, PACKED)
    if PARTS > 1:
        words = words_ptr + group.to(tl.int64) * (2 * n_parts)
        wait_for_launch_before(OVERLAPS)
        tell_team(words + part, largest)
        tell_team(words + n_parts + part, total)
        maxima, totals = hear_team(words, n_parts, 2, PARTS)
        largest, total = joined(tl.where(tl.arange(0, PARTS) < n_parts, maxima, float("-inf")), totals)
    divisor = tl.log2(total) if SHORT else 1 / total
    for place in tl.static_range(CHUNKS):
        z = x_again[place].to(COMPUTE) - largest
        y = tl.exp2(z * LOG2_E - divisor) if SHORT else tl.exp(z) * divisor
        mask = chunk_columns(place, BLOCK_SIZE) < length - start
        tl.store(chunk_pointers(y_row + lead + start, place, BLOCK_SIZE), y.to(y_ptr.dtype.element_ty), mask=mask)
    if EDGES:
        y = tl.exp(x_edges - largest) / total
        tl.store(y_row + edges, y.to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["inner_rows"])
def softmax_forward_blocks_kernel(
    x_ptr, y_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in blocks of columns: read once for maximum and sum, again from cache for the result."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group = tl.program_id(0)
    in_rows = rows_exist(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(y_rows, n_columns, VECTOR, EDGES)
    x_middle = x_rows + lead, x_strides[3], in_rows, length
    largest, total = statistics_of(x_middle, 0, EDGES, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE, GROUP)
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
        largest, total = with_edges(x_rows + edges, is_edge & in_rows, largest, total, COMPUTE)
        store_edges(x_rows + edges, y_rows + edges, is_edge & in_rows, largest, total, COMPUTE)
    y_middle = y_rows + lead, y_strides[3]
    store_softmax(x_middle, y_middle, 0, largest, total, EDGES, COMPUTE, BLOCKS, BLOCK_SIZE)


@triton.jit(do_not_specialize=["inner_rows", "n_groups", "n_parts"])
def softmax_statistics_kernel(
    x_ptr, y_ptr, statistics_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_groups, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Store maximum and sum of one part of ROWS rows: BLOCKS blocks of their columns. The first part has the edges."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    in_rows = rows_exist(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(y_rows, n_columns, VECTOR, EDGES)
    x_middle = x_rows + lead, x_strides[3], in_rows, length
    largest, total = statistics_of(x_middle, part * BLOCKS, EDGES, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE, GROUP)
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
        is_edge &= in_rows & (part == 0)
        largest, total = with_edges(x_rows + edges, is_edge, largest, total, COMPUTE)
    places = statistics_places(group, part, n_parts, ROWS)
    tl.store(statistics_ptr + places, largest)
    tl.store(statistics_ptr + n_groups * ROWS * n_parts + places, total)


@triton.jit(do_not_specialize=["inner_rows", "n_groups", "n_parts"])
def softmax_forward_split_kernel(
    x_ptr, y_ptr, statistics_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_groups, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    PARTS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The result for one part of ROWS rows, from the statistics of all their parts."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    parts = tl.arange(0, PARTS)
    places = statistics_places(group, parts, n_parts, ROWS)
    parts_largest = tl.load(statistics_ptr + places, mask=parts < n_parts, other=float("-inf"))  # [ROWS, PARTS]
    parts_total = tl.load(statistics_ptr + n_groups * ROWS * n_parts + places, mask=parts < n_parts, other=0.0)
    largest, total = joined(parts_largest, parts_total)
    in_rows = rows_exist(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(y_rows, n_columns, VECTOR, EDGES)
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
        is_edge &= in_rows & (part == 0)
        store_edges(x_rows + edges, y_rows + edges, is_edge, largest, total, COMPUTE)
    x_middle = x_rows + lead, x_strides[3], in_rows, length
    y_middle = y_rows + lead, y_strides[3]
    store_softmax(x_middle, y_middle, part * BLOCKS, largest, total, EDGES, COMPUTE, BLOCKS, BLOCK_SIZE)


@triton.jit
def statistics_of(
    x_middle, first_block, EDGES: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Return the maximum of each row over BLOCKS blocks, and the sum of exp(x − maximum).

    Every lane keeps a maximum and a sum of its own, and `joined` combines the lanes. GROUP elements of a block are
    assigned to one lane and share its maximum, so that an element costs little more than one exponential.
    """
    x_rows, column_stride, in_rows, length = x_middle
    LANES: tl.constexpr = BLOCK_SIZE // GROUP
    SHORT: tl.constexpr = x_rows.dtype.element_ty.primitive_bitwidth <= 16
    lowest = LOWEST_DOUBLE if COMPUTE.primitive_bitwidth == 64 else LOWEST
    largest = tl.full([LANES] if ROWS == 1 else [ROWS, LANES], lowest, COMPUTE)
    total = tl.zeros_like(largest)  # [ROWS, LANES], or [LANES] of one row
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE]
        x_pointers = tile_pointers(x_rows, columns, column_stride, EDGES)
        mask = in_rows & (columns < length)  # [ROWS, BLOCK_SIZE], or [BLOCK_SIZE]
        x = tl.load(x_pointers, mask=mask, other=float("-inf"), eviction_policy="evict_last").to(COMPUTE)
        if GROUP == 1:
            larger = tl.maximum(largest, x)
            added = exponential(x - larger, SHORT)
        else:
            x = tl.reshape(x, [GROUP, LANES])
            larger = tl.maximum(largest, tl.max(x, axis=0))
            added = tl.sum(exponential(x - larger, SHORT), axis=0)
        total = total * exponential(largest - larger, SHORT) + added
        largest = larger
    return joined(largest, total)


@triton.jit
def with_edges(x_pointers, is_edge, largest, total, COMPUTE: tl.constexpr):
    """Return maximum and sum of each row with those of its edges."""
    x = tl.load(x_pointers, mask=is_edge, other=float("-inf")).to(COMPUTE)  # [ROWS, 2 · VECTOR]
    larger = tl.maximum(largest, row_maximum(x))
    return larger, total * tl.exp(largest - larger) + row_sum(tl.exp(x - larger))


@triton.jit
def store_edges(x_pointers, y_pointers, is_edge, largest, total, COMPUTE: tl.constexpr):
    """Store exp(x − largest) / total for both edges of each row."""
    x = tl.load(x_pointers, mask=is_edge, other=float("-inf")).to(COMPUTE)
    y = tl.exp(x - largest) / total
    tl.store(y_pointers, y.to(y_pointers.dtype.element_ty), mask=is_edge)


@triton.jit
def exponential(x, SHORT: tl.constexpr):
    """Return exp(x). If SHORT, by exp2: float32 results below 2⁻¹²⁶ become zero, with a third fewer instructions."""
    return tl.exp2(x * LOG2_E) if SHORT else tl.exp(x)


@triton.jit
def joined(largest, total):
    """Return one maximum and one sum for each row, from those of its lanes or parts."""
    row_largest = row_maximum(largest)
    return row_largest, row_sum(total * tl.exp(largest - row_largest))


@triton.jit
def store_softmax(
    x_middle, y_middle, first_block, largest, total, EDGES: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Store exp(x − largest) / total for BLOCKS blocks of each row. A SHORT dtype divides in the exponent."""
    x_rows, x_column_stride, in_rows, length = x_middle
    SHORT: tl.constexpr = x_rows.dtype.element_ty.primitive_bitwidth <= 16
    divisor = tl.log2(total) if SHORT else 1 / total
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < length)
        x_pointers = tile_pointers(x_rows, columns, x_column_stride, EDGES)
        x = tl.load(x_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        z = x - largest
        y = tl.exp2(z * LOG2_E - divisor) if SHORT else tl.exp(z) * divisor
        y_pointers = tile_pointers(y_middle[0], columns, y_middle[1], EDGES)
        tl.store(y_pointers, y.to(y_pointers.dtype.element_ty), mask=mask)


KERNELS = Kernels(
    registers=softmax_forward_kernel,
    chunks=softmax_forward_chunks_kernel,
    blocks=softmax_forward_blocks_kernel,
    statistics=softmax_statistics_kernel,
    split=softmax_forward_split_kernel,
    numbers_per_part=2,
)


# By the bytes of an element; `Held` explains the fields. Few warps, each with many loads in flight, are fastest for two
# bytes: share of a copy's bandwidth on an H200 in bf16, 12000×7045 0.94 with 4 warps, 0.75 with 8; 8114×21127 0.90 by
# teams, 0.86 with 8 warps, 0.73 by the blocks kernel; 2500×36001 0.89 by teams, 0.69 by the blocks kernel
# (`benchmarks/tuning/softmax_forward-h200.json`).
HELD = {
    2: Held(warps=4, vectors=8, most_vectors=10, most_full=16, team_warps=4, team_vectors=10),
    4: Held(warps=16, vectors=5, most_vectors=9, most_full=9, team_warps=4, team_vectors=10),
}


def forward_config(rows: Rows, plan: Plan) -> RowConfig:
    """Return the config for these rows. A row in registers needs one exponential an element, not two."""
    # Warps of the blocks kernel. On an H200 in bf16: 2048×50257 141.4 µs with 8 warps; 1024×151936 252.3 µs with 8,
    # 239.0 with 16.
    warps = 8 if rows.has_edges or (rows.columns <= 65536 and rows.in_vectors) else 16
    if rows.in_vectors:
        return row_config(rows, plan, 65536, Blocks(warps, 32768), HELD)
    return row_config(rows, plan, 32768, Blocks(warps, 16384), HELD)


@kernels("softmax_forward")
def forward(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, dim: int) -> Operand:
    y = plan.empty_like(x)
    rows = rows_along(dim, y, x)
    default = forward_config(rows, plan)
    plan_rows(plan, KERNELS, rows, default, y=y, x=x)
    return y
