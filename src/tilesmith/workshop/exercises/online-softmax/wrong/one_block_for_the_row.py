# fails: goals (one block holds the whole row)
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, x_row_stride, out_row_stride, BLOCK_SIZE: tl.constexpr):
    column = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + tl.program_id(0) * x_row_stride + column, mask=column < columns, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, axis=0))
    result = powers / tl.sum(powers, axis=0)
    tl.store(out_ptr + tl.program_id(0) * out_row_stride + column, result, mask=column < columns)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x) / sum of exp(x) over the row. A row is contiguous and may have any length."""
    rows, columns = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block_size = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, out, columns, x.stride(0), out.stride(0), BLOCK_SIZE=block_size, num_warps=8)
    return out
