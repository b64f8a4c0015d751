import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, columns, factor, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask)
    tl.store(out_ptr + row * columns + column, x * factor, mask=mask)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x · factor for a contiguous matrix."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    scale_kernel[(rows,)](x, out, columns, factor, BLOCK_SIZE=triton.next_power_of_2(columns))
    return out
