"""Doubles a matrix twice: once along its columns, once along its rows. Both are right; one is slow.

Run the script on a GPU. `tilesmith inspect` runs it on any machine and explains which kernel is slow and why.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def walk_down_kernel(x_ptr, y_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    """One column per program: neighbouring lanes access addresses that are a whole row apart."""
    column = tl.program_id(0)
    rows = tl.arange(0, BLOCK)
    places = rows * n_columns + column
    x = tl.load(x_ptr + places, mask=rows < n_rows)
    tl.store(y_ptr + places, 2 * x, mask=rows < n_rows)


@triton.jit
def walk_along_kernel(x_ptr, y_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    """One row per program: neighbouring lanes access neighbouring addresses."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    places = row * n_columns + columns
    x = tl.load(x_ptr + places, mask=columns < n_columns)
    tl.store(y_ptr + places, 2 * x, mask=columns < n_columns)


if __name__ == "__main__":
    x = torch.randn(256, 256, device="cuda")
    y = torch.empty_like(x)
    walk_down_kernel[(x.shape[1],)](x, y, *x.shape, BLOCK=256)
    walk_along_kernel[(x.shape[0],)](x, y, *x.shape, BLOCK=256)
