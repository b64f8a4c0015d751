import torch
import triton
import triton.language as tl

GROUP = 32
TILE_ROWS, TILE_COLUMNS = 32, 32


@triton.jit
def quantised_matmul_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    out_ptr,
    rows,
    inner,
    columns,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for group in range(tl.cdiv(inner, GROUP)):
        step = group * GROUP + tl.arange(0, GROUP)
        x_mask = (row < rows)[:, None] & (step < inner)[None, :]
        x = tl.load(x_ptr + row[:, None] * inner + step[None, :], mask=x_mask, other=0.0)
        q_mask = (step < inner)[:, None] & (column < columns)[None, :]
        q = tl.load(q_ptr + step[:, None] * columns + column[None, :], mask=q_mask, other=0)
        scale = tl.load(scale_ptr + ..., mask=column < columns, other=0.0)
        total += tl.dot(x, q.to(...)) * scale[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + row[:, None] * columns + column[None, :], total, mask=mask)


def quantised_matmul(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return x · (q · scale): x is float16, q is int8, scale has a row for every 32 rows of q."""
    rows, inner = x.shape
    columns = q.shape[1]
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    quantised_matmul_kernel[grid](
        x,
        q,
        scale,
        out,
        rows,
        inner,
        columns,
        GROUP=GROUP,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
    )
    return out
