# fails: right (running maximum begin)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 128


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, x_row_stride, out_row_stride, BLOCK_SIZE: tl.constexpr):
    x_row_ptr = x_ptr + tl.program_id(0) * x_row_stride
    out_row_ptr = out_ptr + tl.program_id(0) * out_row_stride
    largest = 0.0
    total = 0.0
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_row_ptr + column, mask=column < columns, other=-float("inf"))
        larger = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), axis=0)
        largest = larger
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_row_ptr + column, mask=column < columns, other=-float("inf"))
        tl.store(out_row_ptr + column, tl.exp(x - largest) / total, mask=column < columns)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x) / sum of exp(x) over the row. A row is contiguous and may have any length."""
    rows, columns = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    softmax_kernel[(rows,)](x, out, columns, x.stride(0), out.stride(0), BLOCK_SIZE=BLOCK_SIZE)
    return out
