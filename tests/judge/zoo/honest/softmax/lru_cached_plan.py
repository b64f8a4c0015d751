# functools caches the plan of a shape, not a result
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


import functools


@functools.lru_cache
def plan(rows, cols):
    return (rows,), {"BLOCK": triton.next_power_of_2(cols), "num_warps": 8 if cols > 1024 else 4}


def softmax(x):
    y = torch.empty_like(x)
    grid, options = plan(*x.shape)
    softmax_kernel[grid](x, y, x.shape[1], **options)
    return y
