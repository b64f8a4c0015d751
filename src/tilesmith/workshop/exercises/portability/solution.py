import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 128, 128, 32
STAGES = 3
WARPS = 8


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    rows,
    inner,
    columns,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_INNER: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    accumulator = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for start in tl.range(0, inner, TILE_INNER, num_stages=STAGES):
        step = start + tl.arange(0, TILE_INNER)
        a_mask = (row < rows)[:, None] & (step < inner)[None, :]
        b_mask = (step < inner)[:, None] & (column < columns)[None, :]
        a = tl.load(a_ptr + row[:, None] * inner + step[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + step[:, None] * columns + column[None, :], mask=b_mask, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + row[:, None] * columns + column[None, :], accumulator, mask=mask)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a · b for contiguous matrices."""
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    matmul_kernel[grid](
        a,
        b,
        out,
        rows,
        inner,
        columns,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
        TILE_INNER=TILE_INNER,
        STAGES=STAGES,
        num_warps=WARPS,
    )
    return out
