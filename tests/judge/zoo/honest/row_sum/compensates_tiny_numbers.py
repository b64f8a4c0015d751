# scales rows of tiny numbers up before adding, and down after
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + cols * column_stride, mask=cols < n_cols, other=0.0)
    scale = tl.where(tl.max(tl.abs(x), axis=0) < 1e-20, 1048576.0, 1.0)
    tl.store(y_ptr + row, tl.sum(x * scale, axis=0) / scale)


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
