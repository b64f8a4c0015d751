# fails: goals (vector_bytes)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 512


@triton.jit
def scale_kernel(x_ptr, out_ptr, n_elements, factor, BLOCK_SIZE: tl.constexpr):
    for half in tl.static_range(2):
        offsets = tl.program_id(0) * 2 * BLOCK_SIZE + 2 * tl.arange(0, BLOCK_SIZE) + half
        mask = offsets < n_elements
        x = tl.load(x_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, x * factor, mask=mask)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x · factor for a contiguous matrix."""
    out = torch.empty_like(x)
    programs = triton.cdiv(x.numel(), 2 * BLOCK_SIZE)
    scale_kernel[(programs,)](x, out, x.numel(), factor, BLOCK_SIZE=BLOCK_SIZE)
    return out
