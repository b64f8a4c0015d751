# fails: right (when the last program runs first)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 128


@triton.jit
def scan_blocks_kernel(x_ptr, out_ptr, total_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    program = tl.program_id(0)
    offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    carry = tl.atomic_add(total_ptr, tl.sum(x, axis=0))
    tl.store(out_ptr + offsets, tl.cumsum(x, axis=0) + carry, mask=mask)


def prefix_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the first 1, 2, 3, … elements of a vector."""
    programs = triton.cdiv(x.numel(), BLOCK_SIZE)
    out = torch.empty_like(x)
    total = torch.zeros(1, dtype=x.dtype, device=x.device)
    scan_blocks_kernel[(programs,)](x, out, total, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
