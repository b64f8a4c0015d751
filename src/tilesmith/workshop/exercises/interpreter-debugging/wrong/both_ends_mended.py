# fails: right (stored by program)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 64


@triton.jit
def smooth_kernel(x_ptr, out_ptr, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < length
    middle = tl.load(x_ptr + offsets, mask=mask)
    before = tl.load(x_ptr + tl.maximum(offsets - 1, 0), mask=mask)
    after = tl.load(x_ptr + tl.minimum(offsets + 1, length - 1), mask=mask)
    tl.store(out_ptr + offsets, (before + 2.0 * middle + after) / 3.0, mask=mask)


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Average each element with its neighbours, weights 1 : 2 : 1; at an end, the element replaces the missing one."""
    out = torch.empty_like(x)
    smooth_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
