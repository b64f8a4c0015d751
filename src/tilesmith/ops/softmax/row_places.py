"""Device functions of softmax's kernels: the addresses of a program's rows, and of the statistics of their parts.

A program takes a group of ROWS rows. Rows are numbered in three nested loops (`ops/device/runs.py`): `inner_rows` rows
with one stride, `outer_rows` such runs, and the rest; `strides` has the stride of each loop, from the outermost. A
group of several rows lies in one run, and its last rows may not exist.
"""

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
