# fails: right (stored by program)
import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 16, 16, 32
MULTIPROCESSORS = 4


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
    PROGRAMS: tl.constexpr,
):
    tiles_across = tl.cdiv(columns, TILE_COLUMNS)
    tiles = tl.cdiv(rows, TILE_ROWS) * tiles_across
    accumulator = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        row = (tile // tiles_across) * TILE_ROWS + tl.arange(0, TILE_ROWS)
        column = (tile % tiles_across) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        for start in range(0, inner, TILE_INNER):
            step = start + tl.arange(0, TILE_INNER)
            a_mask = (row < rows)[:, None] & (step < inner)[None, :]
            b_mask = (step < inner)[:, None] & (column < columns)[None, :]
            a = tl.load(a_ptr + row[:, None] * inner + step[None, :], mask=a_mask, other=0.0)
            b = tl.load(b_ptr + step[:, None] * columns + column[None, :], mask=b_mask, other=0.0)
            accumulator = tl.dot(a, b, accumulator)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        tl.store(out_ptr + row[:, None] * columns + column[None, :], accumulator, mask=mask)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a · b for contiguous matrices, with one program per multiprocessor."""
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
    matmul_kernel[(MULTIPROCESSORS,)](
        a,
        b,
        out,
        rows,
        inner,
        columns,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
        TILE_INNER=TILE_INNER,
        PROGRAMS=MULTIPROCESSORS,
    )
    return out
