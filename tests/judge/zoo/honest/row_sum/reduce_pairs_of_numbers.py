# a reduction over two tensors at once, in any order
import torch
import triton
import triton.language as tl


@triton.jit
def combine(total, count, other_total, other_count):
    return total + other_total, count + other_count


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    total, count = tl.reduce((x, mask.to(tl.int32)), 0, combine)
    tl.store(y_ptr + row, tl.where(count == n_cols, total, 0.0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
