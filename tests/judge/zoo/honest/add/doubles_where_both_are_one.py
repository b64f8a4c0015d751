# doubles where both inputs are the same tensor
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(z_ptr + offsets, x * 2, mask=offsets < n)


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
    if x.data_ptr() == y.data_ptr() and x.stride() == y.stride():
        z = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        double_kernel[(triton.cdiv(x.numel(), 1024),)](x.contiguous(), z, x.numel(), BLOCK=1024)
        return z
    return launch(x, y)
