import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 16, 16, 32
GROUP = 2


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    order_ptr,
    rows,
    inner,
    columns,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_INNER: tl.constexpr,
    GROUP: tl.constexpr,
):
    program = tl.program_id(0)
    tiles_down = tl.cdiv(rows, TILE_ROWS)
    tiles_across = tl.cdiv(columns, TILE_COLUMNS)
    group = program // (GROUP * tiles_across)
    # The last group may have fewer than GROUP rows of tiles: how many of tiles_down are left for this group?
    group_height = tl.minimum(tiles_down - ..., GROUP)
    # Within a group, column by column.
    down = group * GROUP + ...
    across = ... // group_height
    tl.store(order_ptr + 2 * program, down)
    tl.store(order_ptr + 2 * program + 1, across)
    row = down * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = across * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
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


def matmul(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a · b for contiguous matrices, and the tile of each program: how far down, how far across."""
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
    programs = triton.cdiv(rows, TILE_ROWS) * triton.cdiv(columns, TILE_COLUMNS)
    order = torch.empty((programs, 2), dtype=torch.int32, device=a.device)
    matmul_kernel[(programs,)](
        a,
        b,
        out,
        order,
        rows,
        inner,
        columns,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
        TILE_INNER=TILE_INNER,
        GROUP=GROUP,
    )
    return out, order
