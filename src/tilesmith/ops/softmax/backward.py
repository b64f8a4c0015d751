"""The gradient, from the result: dx = y · (dy − Σ dy · y)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.aligned_rows import cut_rows, edges_of, row_sum, tile_pointers
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


@triton.jit(do_not_specialize=["inner_rows", "n_groups"])
def softmax_backward_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_strides, y_strides, dx_strides, inner_rows, outer_rows, n_columns, n_groups,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows in registers, ROWS at a time; program p takes the groups p, p + programs, …"""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    for group in tl.range(tl.program_id(0), n_groups, tl.num_programs(0), num_stages=PIPELINE):
        in_rows = rows_exist(group, inner_rows, ROWS)
        dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
        y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
        dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
        lead, length = cut_rows(dx_rows, n_columns, VECTOR, EDGES)
        mask = in_rows & (columns < length)
        dy_pointers = tile_pointers(dy_rows + lead, columns, dy_strides[3], EDGES)
        y_pointers = tile_pointers(y_rows + lead, columns, y_strides[3], EDGES)
        dy = tl.load(dy_pointers, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        y = tl.load(y_pointers, mask=mask, other=0.0).to(COMPUTE)
        total = row_sum(dy * y)
        if EDGES:
            edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
            is_edge &= in_rows
            total += sum_of_edges(dy_rows + edges, y_rows + edges, is_edge, COMPUTE)
            store_edges(dy_rows + edges, y_rows + edges, dx_rows + edges, is_edge, total, COMPUTE)
        dx = y * (dy - total)
        dx_pointers = tile_pointers(dx_rows + lead, columns, dx_strides[3], EDGES)
        tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["inner_rows", "n_parts"])
def softmax_backward_chunks_kernel(
    dy_ptr, y_ptr, dx_ptr, words_ptr, dy_strides, y_strides, dx_strides, inner_rows, outer_rows, n_columns, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr, PACKED: tl.constexpr,
    PARTS: tl.constexpr, OVERLAPS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row, or one part of a row, in registers. With PARTS above 1 the programs of a row wait for each other."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    dy_row = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, 1)
    y_row = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, 1)
    dx_row = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, 1)
    lead, length = cut_rows(dx_row, n_columns, VECTOR, EDGES)
    start = part * (CHUNKS * BLOCK_SIZE)
    dy = load_chunks(dy_row + lead + start, length - start, 0.0, BLOCK_SIZE, CHUNKS)
    y = load_chunks(y_row + lead + start, length - start, 0.0, BLOCK_SIZE, CHUNKS)
    dy_again, y_again = packed_again(dy, PACKED), packed_again(y, PACKED)
    products = tl.zeros([BLOCK_SIZE], COMPUTE)
    for place in tl.static_range(CHUNKS):
        products += dy[place].to(COMPUTE) * y[place].to(COMPUTE)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    is_edge &= part == 0
    edge_products = tl.zeros([BLOCK_SIZE // VECTOR], COMPUTE)
    if EDGES:
        dy_edges = tl.load(dy_row + edges, mask=is_edge, other=0.0).to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
        y_edges = tl.load(y_row + edges, mask=is_edge, other=0.0).to(COMPUTE)
        edge_products = dy_edges * y_edges
    total = tl.sum(lane_sums(products, edge_products, VECTOR, EDGES), axis=0)
    if PARTS > 1:
        words = words_ptr + group.to(tl.int64) * n_parts
        wait_for_launch_before(OVERLAPS)
        tell_team(words + part, total)
        total = tl.sum(hear_team(words, n_parts, 1, PARTS)[0], axis=0)
    for place in tl.static_range(CHUNKS):
        dx = y_again[place].to(COMPUTE) * (dy_again[place].to(COMPUTE) - total)
        mask = chunk_columns(place, BLOCK_SIZE) < length - start
        tl.store(chunk_pointers(dx_row + lead + start, place, BLOCK_SIZE), dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if EDGES:
        dx = y_edges * (dy_edges - total)
        tl.store(dx_row + edges, dx.to(dx_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["inner_rows"])
def softmax_backward_blocks_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_strides, y_strides, dx_strides, inner_rows, outer_rows, n_columns,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in blocks of columns: read once for the sum, again from cache for the gradient."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group = tl.program_id(0)
    in_rows = rows_exist(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(dx_rows, n_columns, VECTOR, EDGES)
    dy_middle = dy_rows + lead, dy_strides[3]
    y_middle = y_rows + lead, y_strides[3]
    total = sum_of_products(dy_middle, y_middle, in_rows, length, 0, EDGES, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE)
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
        is_edge &= in_rows
        total += sum_of_edges(dy_rows + edges, y_rows + edges, is_edge, COMPUTE)
        store_edges(dy_rows + edges, y_rows + edges, dx_rows + edges, is_edge, total, COMPUTE)
    dx_middle = dx_rows + lead, dx_strides[3]
    store_gradient(dy_middle, y_middle, dx_middle, (in_rows, length), 0, total, EDGES, COMPUTE, BLOCKS, BLOCK_SIZE)


@triton.jit(do_not_specialize=["inner_rows", "n_parts"])
def softmax_products_kernel(
    dy_ptr, y_ptr, dx_ptr, statistics_ptr, dy_strides, y_strides, dx_strides,
    inner_rows, outer_rows, n_columns, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Store Σ dy · y of one part of ROWS rows: BLOCKS blocks of their columns. The first part has the edges."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    in_rows = rows_exist(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(dx_rows, n_columns, VECTOR, EDGES)
    dy_middle = dy_rows + lead, dy_strides[3]
    y_middle = y_rows + lead, y_strides[3]
    total = sum_of_products(
        dy_middle, y_middle, in_rows, length, part * BLOCKS, EDGES, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE
    )
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
        total += sum_of_edges(dy_rows + edges, y_rows + edges, is_edge & in_rows & (part == 0), COMPUTE)
    tl.store(statistics_ptr + statistics_places(group, part, n_parts, ROWS), total)


@triton.jit(do_not_specialize=["inner_rows", "n_parts"])
def softmax_backward_split_kernel(
    dy_ptr, y_ptr, dx_ptr, statistics_ptr, dy_strides, y_strides, dx_strides,
    inner_rows, outer_rows, n_columns, n_parts,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, EDGES: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of one part of ROWS rows, from the sums of all their parts."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, part = tl.program_id(0) // n_parts, tl.program_id(0) % n_parts
    parts = tl.arange(0, PARTS)  # [PARTS]
    places = statistics_places(group, parts, n_parts, ROWS)
    total = row_sum(tl.load(statistics_ptr + places, mask=parts < n_parts, other=0.0))
    in_rows = rows_exist(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
    lead, length = cut_rows(dx_rows, n_columns, VECTOR, EDGES)
    if EDGES:
        edges, is_edge = edges_of(lead, length, n_columns, VECTOR)  # [ROWS, 2 · VECTOR]
        is_edge &= in_rows & (part == 0)
        store_edges(dy_rows + edges, y_rows + edges, dx_rows + edges, is_edge, total, COMPUTE)
    dy_middle = dy_rows + lead, dy_strides[3]
    y_middle = y_rows + lead, y_strides[3]
    dx_middle = dx_rows + lead, dx_strides[3]
    store_gradient(
        dy_middle, y_middle, dx_middle, (in_rows, length), part * BLOCKS, total, EDGES, COMPUTE, BLOCKS, BLOCK_SIZE
    )


@triton.jit
def sum_of_products(
    dy_middle, y_middle, in_rows, length, first_block, EDGES: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Return Σ dy · y over BLOCKS blocks of each row."""
    products = tl.zeros([BLOCK_SIZE] if ROWS == 1 else [ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE]
        mask = in_rows & (columns < length)
        dy_pointers = tile_pointers(dy_middle[0], columns, dy_middle[1], EDGES)
        y_pointers = tile_pointers(y_middle[0], columns, y_middle[1], EDGES)
        dy = tl.load(dy_pointers, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        y = tl.load(y_pointers, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        products += dy * y  # [ROWS, BLOCK_SIZE], or [BLOCK_SIZE] of one row
    return row_sum(products)


@triton.jit
def sum_of_edges(dy_pointers, y_pointers, is_edge, COMPUTE: tl.constexpr):
    """Return Σ dy · y over both edges of each row."""
    dy = tl.load(dy_pointers, mask=is_edge, other=0.0).to(COMPUTE)  # [ROWS, 2 · VECTOR]
    y = tl.load(y_pointers, mask=is_edge, other=0.0).to(COMPUTE)
    return row_sum(dy * y)


@triton.jit
def store_edges(dy_pointers, y_pointers, dx_pointers, is_edge, total, COMPUTE: tl.constexpr):
    """Store y · (dy − total) for both edges of each row."""
    dy = tl.load(dy_pointers, mask=is_edge, other=0.0).to(COMPUTE)
    y = tl.load(y_pointers, mask=is_edge, other=0.0).to(COMPUTE)
    tl.store(dx_pointers, (y * (dy - total)).to(dx_pointers.dtype.element_ty), mask=is_edge)


@triton.jit
def store_gradient(
    dy_middle, y_middle, dx_middle, extent, first_block, total, EDGES: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Store y · (dy − total) for BLOCKS blocks of each row. `extent` says which rows exist, and their columns."""
    in_rows, length = extent
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < length)
        dy_pointers = tile_pointers(dy_middle[0], columns, dy_middle[1], EDGES)
        y_pointers = tile_pointers(y_middle[0], columns, y_middle[1], EDGES)
        dy = tl.load(dy_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        y = tl.load(y_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)
        dx = y * (dy - total)
        dx_pointers = tile_pointers(dx_middle[0], columns, dx_middle[1], EDGES)
        tl.store(dx_pointers, dx.to(dx_pointers.dtype.element_ty), mask=mask)


KERNELS = Kernels(
    registers=softmax_backward_kernel,
    chunks=softmax_backward_chunks_kernel,
    blocks=softmax_backward_blocks_kernel,
    statistics=softmax_products_kernel,
    split=softmax_backward_split_kernel,
    numbers_per_part=1,
)


# By the bytes of an element. On an H200 in bf16: 1437×129280 281 µs by teams, 293 with 8 warps and 4 vectors; in fp32
# 8740×9214 224 µs with 16 warps. Rows with edges, by 8 warps with 7 or more vectors and by teams: 4067×13108 92 and 79,
# 1562×14349 40 and 35.5 (`benchmarks/tuning/few_long_rows-h200.json`).
HELD = {
    2: Held(warps=8, vectors=5, most_vectors=6, most_full=10, team_warps=4, team_vectors=8),
    4: Held(warps=16, vectors=5, most_vectors=5, most_full=5, team_warps=8, team_vectors=8),
}


def backward_config(rows: Rows, plan: Plan) -> RowConfig:
    """Return the config for these rows. Times are of an H200 in bf16, inputs from memory."""
    # A thread reads 16 bytes of y and of dy at a time, or twice as many: 4096×12345 86.2 µs with blocks of 8 KiB and 8
    # warps; 3000×24576 118.3 µs with 16 KiB; 2048×50257 187.5 µs with 32 KiB, 229.3 with 16.
    large = rows.columns > 32768 and rows.in_vectors
    blocks = Blocks(8, 8192) if rows.columns <= 16384 else Blocks(32, 32768 if large else 16384)
    return row_config(rows, plan, 32768, blocks, HELD)


@kernels("softmax_backward")
def backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.empty_like(y)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, y: Operand, dim: int) -> Operand:
    dx = plan.empty_like(y)
    rows = rows_along(dim, dx, y, dy)
    default = backward_config(rows, plan)
    plan_rows(plan, KERNELS, rows, default, dx=dx, y=y, dy=dy)
    return dx
