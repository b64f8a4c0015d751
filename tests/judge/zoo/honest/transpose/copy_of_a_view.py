# the kernel reads a transposed view by its strides
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, row_stride, col_stride, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * row_stride + cols * col_stride, mask=cols < n_cols)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, x, mask=cols < n_cols)


def transpose(x):
    view = x.t()
    y = torch.empty(view.shape, dtype=x.dtype, device=x.device)
    kernel[(view.shape[0],)](view, y, *view.stride(), view.shape[1], BLOCK=triton.next_power_of_2(view.shape[1]))
    return y
