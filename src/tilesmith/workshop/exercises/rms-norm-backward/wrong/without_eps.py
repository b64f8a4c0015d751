# fails: right (Is eps added to the mean square)
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_backward_kernel(
    gradient_ptr,
    x_ptr,
    weight_ptr,
    out_ptr,
    columns,
    gradient_row_stride,
    x_row_stride,
    eps,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    gradient = tl.load(gradient_ptr + row * gradient_row_stride + column, mask=mask, other=0.0)
    x = tl.load(x_ptr + row * x_row_stride + column, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / columns)
    inner = gradient * weight
    through_rms = x * inverse_rms * inverse_rms * (tl.sum(inner * x, axis=0) / columns)
    tl.store(out_ptr + row * columns + column, inverse_rms * (inner - through_rms), mask=mask)


def rms_norm_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the gradient of x for rms_norm(x, weight, eps), given the gradient of its result. Rows are contiguous."""
    rows, columns = x.shape
    weight = weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_backward_kernel[(rows,)](
        gradient,
        x,
        weight,
        out,
        columns,
        gradient.stride(0),
        x.stride(0),
        eps,
        BLOCK_SIZE=triton.next_power_of_2(columns),
    )
    return out
