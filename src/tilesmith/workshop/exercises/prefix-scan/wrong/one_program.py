# fails: goals (programs is 1)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 128


@triton.jit
def scan_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    carry = 0.0
    for start in range(0, n_elements, BLOCK_SIZE):
        offsets = start + tl.arange(0, BLOCK_SIZE)
        mask = offsets < n_elements
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
        tl.store(out_ptr + offsets, tl.cumsum(x, axis=0) + carry, mask=mask)
        carry += tl.sum(x, axis=0)


def prefix_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the first 1, 2, 3, … elements of a vector."""
    out = torch.empty_like(x)
    scan_kernel[(1,)](x, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
