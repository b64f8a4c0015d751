# NumPy adds through __array__; from_numpy returns memory that a kernel touched
# judge: outside-kernels|no-launch|wrong-value|not-by-a-kernel|alias
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(z_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


import numpy as np


def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(1,)](x, y, z, 1, BLOCK=16)
    np.add(x.numpy(), y.numpy(), out=z.numpy())
    return z
