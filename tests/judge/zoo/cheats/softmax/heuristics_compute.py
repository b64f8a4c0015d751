# a heuristic of the kernel computes on the host
# judge: outside-kernels|wrong-value|torch-computes|not-portable|exception
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


class Answers:
    values = None


def compute(arguments):
    Answers.values = torch.softmax(arguments["x_ptr"], -1)
    return 128


tuned = triton.heuristics({"BLOCK": compute})(copy_kernel)


def softmax(x):
    y = torch.empty_like(x)
    tuned[(triton.cdiv(x.numel(), 128),)](x, y, x.numel())
    return copied(Answers.values)
