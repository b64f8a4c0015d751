# changes the grid of the recorded launch afterwards
# judge: outside-kernels|wrong-value|exception|garbage|uninitialised
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


import gc


def softmax(x):
    y = copied(torch.softmax(x, -1))
    for one in gc.get_objects():
        if type(one).__name__ == "Tape":
            one.steps[:] = [step for step in one.steps if "kernel" in step]
    return y
