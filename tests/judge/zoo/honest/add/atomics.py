# adds both inputs by atomics onto zeros
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(z_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n).to(tl.float32), mask=offsets < n)


def add(x, y):
    z = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for one in (x, y):
        add_kernel[(triton.cdiv(x.numel(), 128),)](one, z, x.numel(), BLOCK=128)
    return z.to(x.dtype)
