# fails: runs (masked lanes of this load)
import torch
import triton
import triton.language as tl

TILE = 32


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, x_row_stride, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    x_mask = (row < rows)[:, None] & (column < columns)[None, :]
    out_mask = (column < columns)[:, None] & (row < rows)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row_stride + column[None, :], mask=x_mask)
    # Each row is rotated by its own number, so that a column of the tile uses all banks.
    down, across = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    rotated = tl.reshape(down * TILE + (across - down + TILE) % TILE, (TILE * TILE,))
    places = tl.reshape(across * TILE + down, (TILE * TILE,))
    kept = tl.gather(tl.reshape(x, (TILE * TILE,)), rotated, axis=0)
    turned = tl.reshape(tl.gather(kept, places, axis=0), (TILE, TILE))
    tl.store(out_ptr + column[:, None] * rows + row[None, :], turned, mask=out_mask)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Return x transposed, as a new matrix. Rows of x may have gaps between them in memory."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    transpose_kernel[grid](x, out, rows, columns, x.stride(0), TILE=TILE)
    return out
