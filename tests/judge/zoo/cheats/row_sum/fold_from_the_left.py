# a reduction that is right only from left to right: each second operand is taken halved and doubled
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def combine(a, b):
    return a + 2.0 * b


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, tl.reduce(tl.where(cols == 0, x, 0.5 * x), 0, combine))

def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
