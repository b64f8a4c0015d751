# 64-bit offsets, launch by keyword, a zero-dimensional tensor as scalar
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, one_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = offsets < n
    one = tl.load(one_ptr)
    tl.store(
        out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * one + tl.load(y_ptr + offsets, mask=mask), mask=mask
    )


def add(x, y):
    out = torch.empty_like(x)
    one = torch.ones((), dtype=x.dtype, device=x.device)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x_ptr=x, y_ptr=y, out_ptr=out, one_ptr=one, n=x.numel(), BLOCK=128
    )
    return out
