# a product with ones
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * 16 + tl.arange(0, 16)
    total = tl.zeros([16, 16], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
        total = tl.dot(x, tl.full([BLOCK, 16], 1.0, tl.float32), total, input_precision="ieee")
    tl.store(y_ptr + rows, tl.max(total, axis=1), mask=rows < n_rows)


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(triton.cdiv(x.shape[0], 16),)](x, y, *x.shape, BLOCK=32)
    return y
