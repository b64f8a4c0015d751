# fails: right (variance is about as large as eps)
import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, columns, x_row_stride, out_row_stride, eps, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    difference = tl.where(mask, x - mean, 0.0)
    inverse_deviation = 1.0 / (tl.sqrt(tl.sum(difference * difference, axis=0) / columns) + eps)
    weight = tl.load(weight_ptr + column, mask=mask)
    bias = tl.load(bias_ptr + column, mask=mask)
    tl.store(out_ptr + row * out_row_stride + column, difference * inverse_deviation * weight + bias, mask=mask)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Return (x - mean) / √(variance + eps) · weight + bias over each row. The elements of a row are contiguous."""
    rows, columns = x.shape
    weight, bias = weight.contiguous(), bias.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    layer_norm_kernel[(rows,)](
        x, weight, bias, out, columns, x.stride(0), out.stride(0), eps, BLOCK_SIZE=triton.next_power_of_2(columns)
    )
    return out
