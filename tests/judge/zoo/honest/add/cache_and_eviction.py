# cache modifiers, eviction policies and a lambda as grid
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, cache_modifier=".cg")
    y = tl.load(y_ptr + at, mask=at < n, eviction_policy="evict_first")
    tl.store(out_ptr + at, x + y, mask=at < n)


def add(x, y):
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=128)
    return out
