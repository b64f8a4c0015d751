# reshapes with can_reorder, whose order a GPU changes
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, 8)[:, None]
    offsets = tl.program_id(0) * BLOCK + rows * (BLOCK // 8) + tl.arange(0, BLOCK // 8)[None, :]
    z = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0) + tl.load(y_ptr + offsets, mask=offsets < n, other=0.0)
    flat = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z_ptr + flat, tl.reshape(z, [BLOCK], can_reorder=True), mask=flat < n)

def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, z, x.numel(), BLOCK=128)
    return z
