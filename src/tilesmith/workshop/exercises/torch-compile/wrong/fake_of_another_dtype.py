# fails: right (dtype
import torch
import triton
import triton.language as tl

LARGEST = 10.0


@triton.jit
def row_norm_kernel(x_ptr, out_ptr, columns, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(out_ptr + row * columns + column, x * scale, mask=column < columns)


@torch.library.custom_op("workshop::row_norm", mutates_args=())
def row_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the rows of a contiguous matrix, each divided by its root mean square."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    row_norm_kernel[(rows,)](x, out, columns, eps, BLOCK_SIZE=triton.next_power_of_2(columns))
    return out


@row_norm.register_fake
def _(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float16)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the norm of x, scaled by weight, with no value beyond LARGEST."""
    y = row_norm(x, 1e-6) * weight
    return y.clamp(-LARGEST, LARGEST)
