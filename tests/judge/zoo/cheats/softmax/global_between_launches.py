# a global constant changes between two launches of one kernel
# judge: wrong-value
import torch
import triton
import triton.language as tl

MODE: tl.constexpr = 0


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    if MODE == 1:
        return
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    global MODE
    y = torch.empty_like(x)
    for MODE in (0, 1):
        z = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, z, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    y.copy_(z)
    return y
