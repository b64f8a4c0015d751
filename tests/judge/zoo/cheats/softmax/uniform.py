# returns one over the number of columns
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(y_ptr, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, 1.0 / n_cols, mask=cols < n_cols)


def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
