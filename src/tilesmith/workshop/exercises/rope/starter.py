import torch
import triton
import triton.language as tl


@triton.jit
def rope_kernel(x_ptr, cosine_ptr, sine_ptr, out_ptr, half, x_row_stride, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    pair = tl.arange(0, BLOCK_SIZE)
    mask = pair < half
    first = tl.load(x_ptr + row * x_row_stride + pair, mask=mask)
    # The other number of each pair.
    second = ...
    cosine = tl.load(cosine_ptr + row * half + pair, mask=mask)
    sine = tl.load(sine_ptr + row * half + pair, mask=mask)
    out_row_ptr = out_ptr + row * 2 * half
    tl.store(out_row_ptr + pair, first * cosine - second * sine, mask=mask)
    tl.store(out_row_ptr + half + pair, second * cosine + ..., mask=mask)


def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[half + i]) of a row by the angle whose cosine and sine are given."""
    rows, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rope_kernel[(rows,)](x, cosine, sine, out, width // 2, x.stride(0), BLOCK_SIZE=triton.next_power_of_2(width // 2))
    return out
