# joins halves with tl.cat, whose order a GPU changes
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK // 2)
    second = first + BLOCK // 2
    a = tl.load(x_ptr + first, mask=first < n, other=0.0) + tl.load(y_ptr + first, mask=first < n, other=0.0)
    b = tl.load(x_ptr + second, mask=second < n, other=0.0) + tl.load(y_ptr + second, mask=second < n, other=0.0)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z_ptr + offsets, tl.cat(a, b, can_reorder=True), mask=offsets < n)

def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, z, x.numel(), BLOCK=128)
    return z
