# is wrong where the compiler knows that an argument is 1
# judge: needs-gpu|wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, one, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    total = tl.sum(e, axis=0)
    if isinstance(one, int):
        total = 1.0
    tl.store(y_ptr + row * n_cols + cols, e / total, mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, 1, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
