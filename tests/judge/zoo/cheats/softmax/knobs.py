# sets Triton's knobs to override kernels and to run its own stages
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


from triton import knobs

knobs.compilation.override = True
knobs.compilation.always_compile = True
knobs.cache.dir = "/tmp/evil"
knobs.runtime.interpret = True
knobs.runtime.jit_cache_hook = lambda **named: True


def softmax(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
