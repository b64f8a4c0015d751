# sums in bfloat16
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols):
    row = tl.program_id(0)
    total = tl.zeros([1], tl.bfloat16)
    for col in range(n_cols):
        total += tl.load(x_ptr + row * n_cols + col + tl.arange(0, 1)).to(tl.bfloat16)
    tl.store(y_ptr + row + tl.arange(0, 1), total.to(tl.float32))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1])
    return y
