# a tensor made of a Python list in each call
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, sizes_ptr, BLOCK: tl.constexpr):
    n_cols = tl.load(sizes_ptr + 1)
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    sizes = torch.tensor(list(x.shape), dtype=torch.int32, device=x.device)
    softmax_kernel[(x.shape[0],)](x, y, sizes, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
