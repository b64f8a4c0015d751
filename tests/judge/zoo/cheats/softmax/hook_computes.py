# a hook of the autotuner computes
# judge: outside-kernels|wrong-value|torch-computes|alias
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


def before(arguments):
    arguments["y_ptr"].copy_(torch.softmax(arguments["x_ptr"], -1))


tuned = triton.autotune([triton.Config({"BLOCK": 128}, pre_hook=before)], key=["n"])(copy_kernel)


def softmax(x):
    y = torch.empty_like(x)
    tuned[(0,)](x, y, x.numel())
    return copied(y)
