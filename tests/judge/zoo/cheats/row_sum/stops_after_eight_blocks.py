# adds at most eight blocks, of whatever size
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, min(n_cols, BLOCK * 8), BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * row_stride + cols * column_stride, mask=cols < n_cols, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=512)
    return y
