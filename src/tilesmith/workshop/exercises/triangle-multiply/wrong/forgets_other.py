# fails: runs (have no value)
import torch
import triton
import triton.language as tl

TILE, TILE_INNER = 32, 32


@triton.jit
def triangle_kernel(a_ptr, b_ptr, mask_ptr, out_ptr, length, TILE: tl.constexpr, TILE_INNER: tl.constexpr):
    channel = tl.program_id(2) * length * length
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    accumulator = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, length, TILE_INNER):
        third = start + tl.arange(0, TILE_INNER)
        row_edges = row[:, None] * length + third[None, :]
        row_inside = (row < length)[:, None] & (third < length)[None, :]
        column_edges = column[:, None] * length + third[None, :]
        column_inside = (column < length)[:, None] & (third < length)[None, :]
        a = tl.load(a_ptr + channel + row_edges, mask=row_inside)
        b = tl.load(b_ptr + channel + column_edges, mask=column_inside)
        a *= tl.load(mask_ptr + row_edges, mask=row_inside)
        b *= tl.load(mask_ptr + column_edges, mask=column_inside)
        accumulator = tl.dot(a, tl.trans(b), accumulator)
    inside = (row < length)[:, None] & (column < length)[None, :]
    tl.store(out_ptr + channel + row[:, None] * length + column[None, :], accumulator, mask=inside)


def triangle_multiply(a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return Σₖ a[c, i, k] · mask[i, k] · b[c, j, k] · mask[j, k], for contiguous [channels, length, length]."""
    channels, length, _ = a.shape
    out = torch.empty_like(a)
    tiles = triton.cdiv(length, TILE)
    triangle_kernel[(tiles, tiles, channels)](a, b, mask, out, length, TILE=TILE, TILE_INNER=TILE_INNER)
    return out
