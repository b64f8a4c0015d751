# fails: runs (have no value)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 32


@triton.jit
def sparse_rows_kernel(starts_ptr, columns_ptr, values_ptr, x_ptr, out_ptr, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    start = tl.load(starts_ptr + row)
    end = tl.load(starts_ptr + row + 1)
    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for first in range(start, end, BLOCK_SIZE):
        offsets = first + tl.arange(0, BLOCK_SIZE)
        mask = offsets < end
        column = tl.load(columns_ptr + offsets, mask=mask, other=0)
        value = tl.load(values_ptr + offsets, mask=mask)
        total += value * tl.load(x_ptr + column, mask=mask, other=0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


def sparse_product(starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return A · x for a sparse matrix A in CSR form: row r has the elements starts[r] … starts[r + 1] − 1."""
    rows = starts.numel() - 1
    out = torch.empty(rows, dtype=x.dtype, device=x.device)
    sparse_rows_kernel[(rows,)](starts, columns, values, x, out, BLOCK_SIZE=BLOCK_SIZE)
    return out
