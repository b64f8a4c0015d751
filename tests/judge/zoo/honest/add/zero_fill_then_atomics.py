# adds both inputs into zeros by atomics
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(z_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask, sem="relaxed")


def add(x, y):
    z = torch.zeros_like(x)
    n = x.numel()
    for one in (x, y):
        add_kernel[(triton.cdiv(n, 256),)](one, z, n, BLOCK=256)
    return z
