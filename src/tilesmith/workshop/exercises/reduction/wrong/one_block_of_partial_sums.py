# fails: right (Does the second launch take all of them)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 256


@triton.jit
def sum_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets, mask=offsets < n_elements, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x, axis=0))


def total(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of a vector, as a tensor of one element."""
    programs = triton.cdiv(x.numel(), BLOCK_SIZE)
    partial = torch.empty(programs, dtype=x.dtype, device=x.device)
    sum_kernel[(programs,)](x, partial, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    out = torch.empty(1, dtype=x.dtype, device=x.device)
    sum_kernel[(1,)](partial, out, programs, BLOCK_SIZE=BLOCK_SIZE)
    return out
