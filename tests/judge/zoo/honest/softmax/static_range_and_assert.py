# static_range, static_assert, device_assert and multiple_of
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, rows, n_cols, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    tl.static_assert(BLOCK >= 1)
    cols = tl.max_contiguous(tl.arange(0, BLOCK), BLOCK)
    for step in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + step
        mask = (cols < n_cols) & (row < rows)
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.where(row < rows, tl.max(x, axis=0), 0.0))
        tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(triton.cdiv(x.shape[0], 3),)](x, y, *x.shape, BLOCK=triton.next_power_of_2(x.shape[1]), ROWS=3)
    return y
