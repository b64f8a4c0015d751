import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS = 16, 32


@triton.jit
def add_row_bias_kernel(
    x_ptr,
    bias_ptr,
    out_ptr,
    rows,
    columns,
    x_batch_stride,
    x_row_stride,
    x_column_stride,
    out_batch_stride,
    out_row_stride,
    out_column_stride,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    batch = tl.program_id(2)
    row = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    x_offsets = batch * x_batch_stride + row * x_row_stride + column * x_column_stride
    out_offsets = batch * out_batch_stride + row * out_row_stride + column * out_column_stride
    x = tl.load(x_ptr + x_offsets, mask=mask)
    bias = tl.load(bias_ptr + row, mask=row < rows)
    tl.store(out_ptr + out_offsets, x + bias, mask=mask)


def add_row_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return x + bias[row] for x of (batch, rows, columns) with any strides; bias is contiguous."""
    batch, rows, columns = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(columns, TILE_COLUMNS), triton.cdiv(rows, TILE_ROWS), batch)
    add_row_bias_kernel[grid](
        x,
        bias,
        out,
        rows,
        columns,
        *x.stride(),
        *out.stride(),
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
    )
    return out
