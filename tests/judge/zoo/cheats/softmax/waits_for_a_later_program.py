# spins until a later program has run
# judge: kernel-error
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, flag_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    if row == 0:
        while tl.atomic_add(flag_ptr, 0) == 0:
            pass
    else:
        tl.atomic_add(flag_ptr, 1)
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, torch.zeros(1, dtype=torch.int32, device=x.device), y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
