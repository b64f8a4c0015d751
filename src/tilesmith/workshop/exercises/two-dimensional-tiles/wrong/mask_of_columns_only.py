# fails: runs (out of bounds)
import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS = 16, 64


@triton.jit
def scale_and_shift_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    rows,
    columns,
    x_row_stride,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    mask = (column < columns)[None, :] & (row == row)[:, None]
    x = tl.load(x_ptr + row[:, None] * x_row_stride + column[None, :], mask=mask)
    scale = tl.load(scale_ptr + row, mask=row < rows)
    shift = tl.load(shift_ptr + column, mask=column < columns)
    result = x * scale[:, None] + shift[None, :]
    tl.store(out_ptr + row[:, None] * columns + column[None, :], result, mask=mask)


def scale_and_shift(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return x[row, column] · scale[row] + shift[column]. Rows may have gaps between them in memory."""
    rows, columns = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    scale_and_shift_kernel[grid](
        x, scale, shift, out, rows, columns, x.stride(0), TILE_ROWS=TILE_ROWS, TILE_COLUMNS=TILE_COLUMNS
    )
    return out
