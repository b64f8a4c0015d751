# uses strides of input and output
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, x_row, x_col, y_row, y_col, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + cols * x_col, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * y_row + cols * y_col, e / tl.sum(e, axis=0), mask=cols < n_cols)


def softmax(x):
    y = torch.empty_strided(x.shape, (1, x.shape[0]), dtype=x.dtype, device=x.device)
    softmax_kernel[(x.shape[0],)](x, y, *x.stride(), *y.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
