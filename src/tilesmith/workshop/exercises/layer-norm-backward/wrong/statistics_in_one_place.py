# fails: runs (both write)
import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, out_ptr, mean_ptr, inverse_deviation_ptr, columns, eps, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    difference = tl.where(mask, x - mean, 0.0)
    inverse_deviation = tl.rsqrt(tl.sum(difference * difference, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    tl.store(out_ptr + row * columns + column, difference * inverse_deviation * weight, mask=mask)
    tl.store(mean_ptr, mean)
    tl.store(inverse_deviation_ptr + row, inverse_deviation)


@triton.jit
def layer_norm_backward_kernel(
    gradient_ptr, x_ptr, weight_ptr, mean_ptr, inverse_deviation_ptr, out_ptr, columns, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    mask = column < columns
    gradient = tl.load(gradient_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr)
    inverse_deviation = tl.load(inverse_deviation_ptr + row)
    normal = tl.where(mask, (x - mean) * inverse_deviation, 0.0)
    inner = gradient * weight
    through_mean = tl.sum(inner, axis=0) / columns
    through_deviation = normal * (tl.sum(inner * normal, axis=0) / columns)
    out = (inner - through_mean - through_deviation) * inverse_deviation
    tl.store(out_ptr + row * columns + column, out, mask=mask)


def forward_and_backward(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return layer_norm(x) · weight, and the gradient of x, given the gradient of the result."""
    rows, columns = x.shape
    out, x_gradient = torch.empty_like(x), torch.empty_like(x)
    mean, inverse_deviation = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(columns)
    layer_norm_kernel[(rows,)](x, weight, out, mean, inverse_deviation, columns, eps, BLOCK_SIZE=block)
    layer_norm_backward_kernel[(rows,)](
        gradient, x, weight, mean, inverse_deviation, x_gradient, columns, BLOCK_SIZE=block
    )
    return out, x_gradient
