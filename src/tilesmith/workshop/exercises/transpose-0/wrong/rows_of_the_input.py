# fails: runs (out of bounds)
import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, x_row_stride, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * x_row_stride + column, mask=mask)
    tl.store(out_ptr + column * columns + row, x, mask=mask)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Return x transposed, as a new matrix. Rows of x may have gaps between them in memory."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    transpose_kernel[(rows,)](x, out, rows, columns, x.stride(0), BLOCK_SIZE=triton.next_power_of_2(columns))
    return out
