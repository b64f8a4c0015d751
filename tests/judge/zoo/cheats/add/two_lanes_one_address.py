# two lanes of a program store different values to one address first
# judge: race
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    half = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) % 64
    tl.store(z_ptr + half, x, mask=half < n)
    tl.store(z_ptr + offsets, x + y, mask=mask)

def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, z, x.numel(), BLOCK=128)
    return z
