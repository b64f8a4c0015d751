# fails: right (also beyond the first 128)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 128


@triton.jit
def scan_blocks_kernel(x_ptr, out_ptr, totals_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    program = tl.program_id(0)
    offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, tl.cumsum(x, axis=0), mask=mask)
    tl.store(totals_ptr + program, tl.sum(x, axis=0))


@triton.jit
def add_totals_kernel(out_ptr, totals_ptr, n_elements, BLOCK_SIZE: tl.constexpr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    before = tl.arange(0, PROGRAMS)
    carry = tl.sum(tl.load(totals_ptr + before, mask=before < program, other=0.0), axis=0)
    offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(out_ptr + offsets, tl.load(out_ptr + offsets, mask=mask) + carry, mask=mask)


def prefix_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the first 1, 2, 3, … elements of a vector."""
    programs = triton.cdiv(x.numel(), BLOCK_SIZE)
    out = torch.empty_like(x)
    totals = torch.empty(programs, dtype=x.dtype, device=x.device)
    scan_blocks_kernel[(programs,)](x, out, totals, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    add_totals_kernel[(programs,)](out, totals, x.numel(), BLOCK_SIZE=BLOCK_SIZE, PROGRAMS=BLOCK_SIZE)
    return out
