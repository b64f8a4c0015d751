# fails: runs (have no value)
import torch
import triton
import triton.language as tl

TILE_PLACES, TILE_OUTPUTS, TILE_CHANNELS = 32, 16, 16


@triton.jit
def conv2d_kernel(
    x_ptr, weight_ptr, out_ptr, channels, height, width, outputs, out_height, out_width, padding,
    WINDOW: tl.constexpr, TILE_PLACES: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    places = out_height * out_width
    place = tl.program_id(0) * TILE_PLACES + tl.arange(0, TILE_PLACES)
    output = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    top = place // out_width - padding
    left = place % out_width - padding
    accumulator = tl.zeros((TILE_PLACES, TILE_OUTPUTS), dtype=tl.float32)
    for down in range(WINDOW):
        for across in range(WINDOW):
            row = top + down
            column = left + across
            inside = (place < places) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            for start in range(0, channels, TILE_CHANNELS):
                channel = start + tl.arange(0, TILE_CHANNELS)
                x_offsets = channel[None, :] * height * width + (row * width + column)[:, None]
                x_mask = inside[:, None] & (channel < channels)[None, :]
                x = tl.load(x_ptr + x_offsets, mask=x_mask)
                weight_offsets = ((output[None, :] * channels + channel[:, None]) * WINDOW + down) * WINDOW + across
                weight_mask = (channel < channels)[:, None] & (output < outputs)[None, :]
                weight = tl.load(weight_ptr + weight_offsets, mask=weight_mask)
                accumulator = tl.dot(x, weight, accumulator)
    mask = (place < places)[:, None] & (output < outputs)[None, :]
    tl.store(out_ptr + output[None, :] * places + place[:, None], accumulator, mask=mask)


def conv2d(x: torch.Tensor, weight: torch.Tensor, padding: int) -> torch.Tensor:
    """Return the convolution of an image [channels, height, width]; weight [outputs, channels, window, window]."""
    channels, height, width = x.shape
    outputs, _, window, _ = weight.shape
    out_height, out_width = height + 2 * padding - window + 1, width + 2 * padding - window + 1
    out = torch.empty((outputs, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(out_height * out_width, TILE_PLACES), triton.cdiv(outputs, TILE_OUTPUTS))
    conv2d_kernel[grid](
        x, weight, out, channels, height, width, outputs, out_height, out_width, padding,
        WINDOW=window, TILE_PLACES=TILE_PLACES, TILE_OUTPUTS=TILE_OUTPUTS, TILE_CHANNELS=TILE_CHANNELS,
    )  # fmt: skip
    return out
