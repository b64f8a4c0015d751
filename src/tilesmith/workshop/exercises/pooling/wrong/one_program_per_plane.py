# fails: runs (not written by any program)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 256


@triton.jit
def max_pool_kernel(
    x_ptr,
    out_ptr,
    height,
    width,
    out_height,
    out_width,
    stride,
    padding,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    plane = tl.program_id(0)
    place = tl.arange(0, BLOCK_SIZE)
    mask = place < out_height * out_width
    top = (place // out_width) * stride - padding
    left = (place % out_width) * stride - padding
    largest = tl.full((BLOCK_SIZE,), -float("inf"), dtype=tl.float32)
    for down in tl.static_range(WINDOW):
        for across in tl.static_range(WINDOW):
            row = top + down
            column = left + across
            inside = mask & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            x = tl.load(x_ptr + plane * height * width + row * width + column, mask=inside, other=-float("inf"))
            largest = tl.maximum(largest, x)
    tl.store(out_ptr + plane * out_height * out_width + place, largest, mask=mask)


def max_pool(x: torch.Tensor, window: int, stride: int, padding: int) -> torch.Tensor:
    """Return the largest element of each window, stride apart; x is contiguous [planes, height, width]."""
    planes, height, width = x.shape
    out_height = (height + 2 * padding - window) // stride + 1
    out_width = (width + 2 * padding - window) // stride + 1
    out = torch.empty((planes, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (planes, triton.cdiv(out_height * out_width, BLOCK_SIZE))
    max_pool_kernel[grid](
        x, out, height, width, out_height, out_width, stride, padding, WINDOW=window, BLOCK_SIZE=BLOCK_SIZE
    )
    return out
