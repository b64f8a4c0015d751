# sums of parts by relaxed atomics, which need no order
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr + row, tl.sum(x, axis=0), sem="relaxed")


def row_sum(x):
    y = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    sum_kernel[(x.shape[0], triton.cdiv(x.shape[1], 64))](x, y, x.shape[1], BLOCK=64)
    return y.to(x.dtype)
