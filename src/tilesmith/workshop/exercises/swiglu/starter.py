import torch
import triton
import triton.language as tl

TILE_INNER = 32


@triton.jit
def swiglu_kernel(
    x_ptr,
    gate_weight_ptr,
    up_weight_ptr,
    out_ptr,
    inner,
    columns,
    TILE_COLUMNS: tl.constexpr,
    TILE_INNER: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, TILE_COLUMNS)
    gate = tl.zeros((TILE_COLUMNS,), dtype=tl.float32)
    up = tl.zeros((TILE_COLUMNS,), dtype=tl.float32)
    for start in range(0, inner, TILE_INNER):
        step = start + tl.arange(0, TILE_INNER)
        x = tl.load(x_ptr + row * inner + step, mask=step < inner, other=0.0).to(tl.float32)
        weight_offsets = step[:, None] * columns + column[None, :]
        weight_mask = (step < inner)[:, None] & (column < columns)[None, :]
        gate_weight = tl.load(gate_weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        up_weight = tl.load(up_weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        gate += tl.sum(x[:, None] * gate_weight, axis=0)
        up += tl.sum(x[:, None] * up_weight, axis=0)
    tl.store(out_ptr + row * columns + column, gate * tl.sigmoid(gate) * up, mask=column < columns)


def swiglu(x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor) -> torch.Tensor:
    """Return silu(x · gate_weight) · (x · up_weight) for contiguous matrices."""
    rows, inner = x.shape
    columns = gate_weight.shape[1]
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    swiglu_kernel[(rows,)](
        x,
        gate_weight,
        up_weight,
        out,
        inner,
        columns,
        TILE_COLUMNS=triton.next_power_of_2(columns),
        TILE_INNER=TILE_INNER,
    )
    return out
