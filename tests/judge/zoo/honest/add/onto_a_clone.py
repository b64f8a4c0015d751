# adds y onto a clone of x
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(z_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(z_ptr + offsets, tl.load(z_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def add(x, y):
    z = x.clone()
    add_kernel[(triton.cdiv(x.numel(), 128),)](z, y, x.numel(), BLOCK=128)
    return z
