# a reduction that relies on the order of its operands
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def combine(a, a_index, b, b_index):
    return a + b, b_index


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    total, last = tl.reduce((x, cols), 0, combine)
    tl.store(y_ptr + row, total + tl.where(last == BLOCK - 1, 0.0, 1.0))

def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
