# two launches on two parts of one output
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(z_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def add(x, y):
    z = torch.empty_like(x)
    half = x.numel() // 2
    for part in (slice(0, half), slice(half, None)):
        count = z[part].numel()
        add_kernel[(triton.cdiv(count, 64),)](x[part], y[part], z[part], count, BLOCK=64)
    return z
