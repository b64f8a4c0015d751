"""Device functions that find the rows of a program, and the statistics of their parts, in memory."""

import triton
import triton.language as tl

from tilesmith.ops.device.runs import run_members, run_offsets


@triton.jit
def rows_exist(group, inner_rows, ROWS: tl.constexpr):
    """Return which rows of a group exist: [ROWS, 1], or a scalar for one row, which always does."""
    return inner_rows > 0 if ROWS == 1 else (run_members(group, inner_rows, ROWS) < inner_rows)[:, None]


@triton.jit
def row_pointers(ptr, strides, group, inner_rows, outer_rows, ROWS: tl.constexpr):
    """Return pointers to the first elements of a group's rows: [ROWS, 1], or a scalar for one row."""
    if ROWS == 1:
        outer = group // inner_rows
        offset = (outer // outer_rows).to(tl.int64) * strides[0] + (outer % outer_rows).to(tl.int64) * strides[1]
        pointers = ptr + offset + (group % inner_rows).to(tl.int64) * strides[2]
    else:
        pointers = ptr + run_offsets(group, inner_rows, outer_rows, strides, ROWS)[:, None]
    return pointers


@triton.jit
def statistics_places(group, part, n_parts, ROWS: tl.constexpr):
    """Return where the statistics of a part of a group's rows are stored: [ROWS, 1], or a scalar for one row."""
    return group * n_parts + part if ROWS == 1 else (group * ROWS + tl.arange(0, ROWS))[:, None] * n_parts + part
