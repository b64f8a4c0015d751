# fails: goals (vector_bytes)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 64
WARPS = 4


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, columns, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    squares = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        squares += x * x
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        mask = column < columns
        x = tl.load(x_ptr + row * columns + column, mask=mask)
        weight = tl.load(weight_ptr + column, mask=mask)
        tl.store(out_ptr + row * columns + column, x * inverse_rms * weight, mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / √(mean of x² over the row + eps) · weight for a contiguous matrix with rows of any length."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    rms_norm_kernel[(rows,)](x, weight, out, columns, eps, BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return out
