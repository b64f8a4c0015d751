# lanes read what other lanes of the program stored, without a barrier
# judge: race
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * BLOCK + lanes
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(z_ptr + offsets, x, mask=mask)
    other = tl.program_id(0) * BLOCK + (BLOCK - 1 - lanes)
    mirrored = tl.load(z_ptr + other, mask=other < n, other=0.0)
    y = tl.load(y_ptr + other, mask=other < n, other=0.0)
    tl.store(z_ptr + other, mirrored + y, mask=other < n)

def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, z, x.numel(), BLOCK=128)
    return z
