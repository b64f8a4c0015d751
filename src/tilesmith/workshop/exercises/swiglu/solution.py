import torch
import triton
import triton.language as tl

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 32, 32, 16


@triton.jit
def swiglu_kernel(
    x_ptr,
    gate_weight_ptr,
    up_weight_ptr,
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
    gate = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    up = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for start in range(0, inner, TILE_INNER):
        step = start + tl.arange(0, TILE_INNER)
        x_mask = (row < rows)[:, None] & (step < inner)[None, :]
        x = tl.load(x_ptr + row[:, None] * inner + step[None, :], mask=x_mask, other=0.0)
        weight_offsets = step[:, None] * columns + column[None, :]
        weight_mask = (step < inner)[:, None] & (column < columns)[None, :]
        gate_weight = tl.load(gate_weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        up_weight = tl.load(up_weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        gate = tl.dot(x, gate_weight, gate)
        up = tl.dot(x, up_weight, up)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + row[:, None] * columns + column[None, :], gate * tl.sigmoid(gate) * up, mask=mask)


def swiglu(x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor) -> torch.Tensor:
    """Return silu(x · gate_weight) · (x · up_weight) for contiguous matrices."""
    rows, inner = x.shape
    columns = gate_weight.shape[1]
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    swiglu_kernel[grid](
        x,
        gate_weight,
        up_weight,
        out,
        rows,
        inner,
        columns,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
        TILE_INNER=TILE_INNER,
    )
    return out
