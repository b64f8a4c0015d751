# NumPy computes through DLPack, a kernel copies
# judge: outside-kernels|wrong-value|exception
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y


import numpy


def softmax(x):
    values = numpy.exp(numpy.from_dlpack(x.detach()) - numpy.from_dlpack(x.detach()).max(-1, keepdims=True))
    return copied(torch.from_dlpack(values / values.sum(-1, keepdims=True)))
