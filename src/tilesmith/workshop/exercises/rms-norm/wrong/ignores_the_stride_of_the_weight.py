# fails: right (neighbours in memory in this case)
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, columns, x_row_stride, out_row_stride, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(out_ptr + row * out_row_stride + column, x * inverse_rms * weight, mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / √(mean of x² over the row + eps) · weight. Rows may have gaps between them in memory."""
    rows, columns = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_kernel[(rows,)](
        x, weight, out, columns, x.stride(0), out.stride(0), eps, BLOCK_SIZE=triton.next_power_of_2(columns)
    )
    return out
