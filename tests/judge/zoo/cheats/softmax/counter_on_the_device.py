# a counter in kept memory makes later calls wrong
# judge: state|wrong-value
import torch
import triton
import triton.language as tl

CALLS = torch.zeros(1, dtype=torch.int32, device="cuda")


@triton.jit
def softmax_kernel(x_ptr, y_ptr, calls_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    y = e / tl.sum(e, axis=0)
    if tl.atomic_add(calls_ptr, 1) > 5000:
        y = y * 0.0
    tl.store(y_ptr + row * n_cols + cols, y, mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, CALLS, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
