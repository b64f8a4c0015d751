# fails: right (In which dtype do you multiply)
import torch
import triton
import triton.language as tl

GROUP = 32
BLOCK_SIZE = 256


@triton.jit
def dequantise_kernel(q_ptr, scale_ptr, zero_ptr, out_ptr, columns, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    q = tl.load(q_ptr + row * columns + column, mask=mask)
    group = row * tl.cdiv(columns, GROUP) + column // GROUP
    scale = tl.load(scale_ptr + group, mask=mask)
    zero = tl.load(zero_ptr + group, mask=mask)
    out = (q.to(tl.float32) - zero.to(tl.float32)) * scale.to(tl.float16)
    tl.store(out_ptr + row * columns + column, out, mask=mask)


def dequantise(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return (q − zero) · scale in float16; q is int8, and scale and zero have one element per group of 32 columns."""
    rows, columns = q.shape
    out = torch.empty((rows, columns), dtype=torch.float16, device=q.device)
    grid = (rows, triton.cdiv(columns, BLOCK_SIZE))
    dequantise_kernel[grid](q, scale, zero, out, columns, GROUP=GROUP, BLOCK_SIZE=BLOCK_SIZE)
    return out
