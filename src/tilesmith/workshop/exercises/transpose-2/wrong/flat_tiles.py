# fails: goals (sector_efficiency of out_ptr)
import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS = 4, 64


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, x_row_stride, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row_stride + column[None, :], mask=mask)
    tl.store(out_ptr + column[None, :] * rows + row[:, None], x, mask=mask)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Return x transposed, as a new matrix. Rows of x may have gaps between them in memory."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    transpose_kernel[grid](x, out, rows, columns, x.stride(0), TILE_ROWS=TILE_ROWS, TILE_COLUMNS=TILE_COLUMNS)
    return out
