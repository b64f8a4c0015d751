# fails: runs (contiguous)
import torch
import triton
import triton.language as tl


@triton.jit
def add_row_numbers_kernel(
    x_ptr,
    out_ptr,
    columns,
    x_row_stride,
    x_column_stride,
    out_row_stride,
    out_column_stride,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * x_row_stride + column * x_column_stride, mask=mask)
    tl.store(out_ptr + row * out_row_stride + column * out_column_stride, x + row, mask=mask)


def add_row_numbers(x: torch.Tensor) -> torch.Tensor:
    """Return x[row, column] + row, for a matrix of any layout; one program per row."""
    rows, columns = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    add_row_numbers_kernel[(rows,)](
        x, out, columns, *x.stride(), *out.stride(), BLOCK_SIZE=triton.next_power_of_2(columns)
    )
    return out
