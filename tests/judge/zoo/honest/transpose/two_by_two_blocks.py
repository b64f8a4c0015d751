# a program moves a tile through a permuted reshape
import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, y_ptr, rows, cols, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = (row[:, None] < rows) & (col[None, :] < cols)
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=mask, other=0.0)
    y = tl.permute(tl.reshape(x, [TILE, TILE]), [1, 0])
    tl.store(y_ptr + col[:, None] * rows + row[None, :], y, mask=tl.trans(mask))


def transpose(x):
    rows, cols = x.shape
    y = torch.empty(cols, rows, dtype=x.dtype, device=x.device)
    transpose_kernel[(triton.cdiv(rows, 16), triton.cdiv(cols, 16))](x, y, rows, cols, TILE=16)
    return y
