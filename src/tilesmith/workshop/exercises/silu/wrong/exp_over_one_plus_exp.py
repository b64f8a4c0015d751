# fails: right (spread = 100)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 1024


@triton.jit
def silu_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * (tl.exp(x) / (1.0 + tl.exp(x))), mask=mask)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x · σ(x), for a vector of any length."""
    out = torch.empty_like(x)
    silu_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
