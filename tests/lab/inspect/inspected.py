# mypy: ignore-errors
"""Kernels for the page: one walks columns, one loads its input twice."""

import triton
import triton.language as tl


@triton.jit
def column_walk(x_ptr, y_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (places % n_rows) * n_columns + places // n_rows)
    tl.store(y_ptr + places, x)


@triton.jit
def twice_read(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_elements
    x = tl.load(x_ptr + places, mask=mask)
    again = tl.load(x_ptr + places, mask=mask, cache_modifier=".cg")  # keeps the compiler from removing the second load
    tl.store(y_ptr + places, x * again + 1.0, mask=mask)
