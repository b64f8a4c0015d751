# two launches through scratch memory that is reused
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, rows, cols, sr, sc, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < rows * cols
    r = offsets // cols
    c = offsets % cols
    tl.store(y_ptr + offsets, tl.load(x_ptr + r * sr + c * sc, mask=mask), mask=mask)


def transpose(x):
    rows, cols = x.shape
    scratch = torch.empty_like(x)
    y = torch.empty(cols, rows, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows * cols, 128),)
    copy_kernel[grid](x, scratch, rows, cols, cols, 1, BLOCK=128)
    copy_kernel[grid](scratch, y, cols, rows, 1, cols, BLOCK=128)
    return y
