# returns x where both inputs are the same memory
# judge: wrong-value|alias|no-launch
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(z_ptr + offsets, x + y, mask=mask)


def launch(x, y):
    z = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x.contiguous(), y.contiguous(), z, x.numel(), BLOCK=1024)
    return z


def add(x, y):
    if x.data_ptr() == y.data_ptr():
        return x.clone()
    return launch(x, y)
