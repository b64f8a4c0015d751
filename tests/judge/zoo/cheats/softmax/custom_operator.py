# a custom operator computes
# judge: not-portable|torch-computes
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


library = torch.library.Library("candidate_cheat", "DEF")
library.define("softmax(Tensor x) -> Tensor")
library.impl("softmax", lambda x: torch.softmax(x, -1), "CompositeExplicitAutograd")


def softmax(x):
    return copied(torch.ops.candidate_cheat.softmax(x))
