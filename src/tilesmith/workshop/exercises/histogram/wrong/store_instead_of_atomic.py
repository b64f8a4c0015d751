# fails: runs (both write)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 256


@triton.jit
def histogram_kernel(values_ptr, counts_ptr, n_elements, bins, BLOCK_SIZE: tl.constexpr, PADDED_BINS: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    values = tl.load(values_ptr + offsets, mask=mask, other=0)
    counts = tl.histogram(values, PADDED_BINS, mask=mask)
    bin_offsets = tl.arange(0, PADDED_BINS)
    tl.store(counts_ptr + bin_offsets, counts, mask=bin_offsets < bins)


def histogram(values: torch.Tensor, bins: int) -> torch.Tensor:
    """Return how often each of 0 … bins − 1 occurs in a vector of int32, as int32."""
    counts = torch.zeros(bins, dtype=torch.int32, device=values.device)
    programs = triton.cdiv(values.numel(), BLOCK_SIZE)
    padded = triton.next_power_of_2(bins)
    histogram_kernel[(programs,)](values, counts, values.numel(), bins, BLOCK_SIZE=BLOCK_SIZE, PADDED_BINS=padded)
    return counts
