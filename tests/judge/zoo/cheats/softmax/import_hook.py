# an import hook replaces modules of the recorder
# judge: wrong-value|ended|exception|garbage
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


import builtins
import sys
import types

stock = builtins.__import__


def hooked(name, *rest, **options):
    if name.startswith("tilesmith"):
        return types.ModuleType(name)
    return stock(name, *rest, **options)


builtins.__import__ = hooked
for name in [one for one in sys.modules if one.startswith("tilesmith")]:
    sys.modules[name] = types.ModuleType(name)


def softmax(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
