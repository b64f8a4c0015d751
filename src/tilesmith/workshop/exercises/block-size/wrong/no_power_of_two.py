# fails: compiles (power of 2)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 5008


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x + y, for vectors of any length."""
    out = torch.empty_like(x)
    programs = triton.cdiv(x.numel(), BLOCK_SIZE)
    add_kernel[(programs,)](x, y, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
