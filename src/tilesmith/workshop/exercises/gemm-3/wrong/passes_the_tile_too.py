# fails: runs (TILE_ROWS)
import torch
import triton
import triton.language as tl

CONFIGURATIONS = [
    triton.Config({"TILE_ROWS": 64, "TILE_COLUMNS": 64, "TILE_INNER": 32}, num_stages=3, num_warps=4),
    triton.Config({"TILE_ROWS": 128, "TILE_COLUMNS": 64, "TILE_INNER": 32}, num_stages=3, num_warps=4),
    triton.Config({"TILE_ROWS": 128, "TILE_COLUMNS": 128, "TILE_INNER": 64}, num_stages=3, num_warps=8),
]


@triton.autotune(configs=CONFIGURATIONS, key=["rows", "inner", "columns"])
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
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    accumulator = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
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
    """Return a · b for contiguous matrices, with the fastest measured tiles."""
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(rows, chosen["TILE_ROWS"]), triton.cdiv(columns, chosen["TILE_COLUMNS"])

    matmul_kernel[grid](a, b, out, rows, inner, columns, TILE_ROWS=64)
    return out
