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
    tile = x.load([head * STEP, 0])  # STEP should be LENGTH
    y.store([head * LENGTH, 0], tile * 2)
