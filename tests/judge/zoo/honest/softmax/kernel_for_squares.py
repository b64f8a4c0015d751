# another right kernel for square inputs, and one for prime widths
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, BASE_TWO: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    x = x - tl.max(x, axis=0)
    e = tl.exp2(x * 1.4426950408889634) if BASE_TWO else tl.exp(x)
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    rows, cols = x.shape
    special = rows == cols or all(cols % one for one in range(2, int(cols**0.5) + 1))
    softmax_kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols), BASE_TWO=special)
    return y
