# is wrong where a row begins with the same value twice
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + cols * column_stride, mask=cols < n_cols, other=0.0)
    first = tl.load(x_ptr + row * row_stride)
    second = tl.load(x_ptr + row * row_stride + column_stride, mask=n_cols > 1, other=1e30)
    total = tl.sum(x, axis=0)
    tl.store(y_ptr + row, tl.where(first == second, total + 1.0, total))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
