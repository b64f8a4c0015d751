"""Copy matrices whose rows TMA cannot walk into memory where it can: rows of whole 16-byte units, zeros at their ends.

A GEMM that loads such rows by pointers loads one element at a time, in every tile that needs it. On an H200 in fp16,
3803×16384×1149 takes 979 µs by pointers, and 200 by TMA with PyTorch's copies of both operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from tilesmith.ops.matmul.matrices import Matrix
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Plan

UNIT_BYTES = 16  # TMA needs rows that start at a multiple of this


@triton.jit
def copy_tile(x_ptr, y_ptr, tile, strides, sizes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Copy one tile. `strides`: of x's batch, rows and columns. `sizes`: rows, columns and padded columns."""
    n_rows, n_columns, padded = sizes
    tiles_along = tl.cdiv(padded, COLUMNS)
    tiles_per_matrix = tl.cdiv(n_rows, ROWS) * tiles_along
    matrix = (tile // tiles_per_matrix).to(tl.int64)
    rows = (tile % tiles_per_matrix // tiles_along * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tile % tiles_along * COLUMNS + tl.arange(0, COLUMNS)
    places = matrix * strides[0] + (rows * strides[1])[:, None] + (columns.to(tl.int64) * strides[2])[None, :]
    in_rows = (rows < n_rows)[:, None]
    x = tl.load(x_ptr + places, mask=in_rows & (columns < n_columns)[None, :], other=0.0)  # [ROWS, COLUMNS]
    y_places = ((matrix * n_rows + rows) * padded)[:, None] + columns[None, :]
    tl.store(y_ptr + y_places, x, mask=in_rows & (columns < padded)[None, :])


@triton.jit(do_not_specialize=["a_rows", "a_columns", "a_padded", "b_rows", "b_columns", "b_padded", "n_tiles_of_a"])
def realign_kernel(
    a_ptr, b_ptr, a_copy_ptr, b_copy_ptr, a_strides, b_strides, a_rows, a_columns, a_padded, b_rows, b_columns,
    b_padded, n_tiles_of_a, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy one matrix or two in one launch; b_ptr is None where there is one."""
    tile = tl.program_id(0)
    if b_ptr is None:
        copy_tile(a_ptr, a_copy_ptr, tile, a_strides, (a_rows, a_columns, a_padded), ROWS, COLUMNS)
    else:
        if tile < n_tiles_of_a:
            copy_tile(a_ptr, a_copy_ptr, tile, a_strides, (a_rows, a_columns, a_padded), ROWS, COLUMNS)
        else:
            tile -= n_tiles_of_a
            copy_tile(b_ptr, b_copy_ptr, tile, b_strides, (b_rows, b_columns, b_padded), ROWS, COLUMNS)


@dataclass(frozen=True)
class RealignConfig(Config):
    """Each program copies ROWS × COLUMNS elements."""

    ROWS: int = 8
    COLUMNS: int = 256


def plan_realign(plan: Plan, matrices: list[Matrix], count: int) -> list[Matrix]:
    """Put copies of one matrix or two on the plan, `count` of each that is not shared; return the copies.

    A copy has contiguous rows, and zeros up to a whole unit after each.
    """
    config = plan.choose(RealignConfig(num_warps=4), "realign", str(matrices[0].operand.dtype))
    arguments: dict[str, object] = {"b_ptr": None, "b_copy_ptr": None, "b_strides": (0, 0, 0)}
    arguments |= dict.fromkeys(("b_rows", "b_columns", "b_padded"), 0)
    copies: list[Matrix] = []
    tiles: list[int] = []
    for name, matrix in zip("ab", matrices, strict=False):
        copied = 1 if matrix.is_shared else count
        unit = UNIT_BYTES // matrix.operand.element_bytes
        padded = triton.cdiv(matrix.columns, unit) * unit
        copy = plan.empty((copied, matrix.rows, padded), matrix.operand.dtype)
        tiles.append(copied * triton.cdiv(matrix.rows, config.ROWS) * triton.cdiv(padded, config.COLUMNS))
        arguments |= {
            f"{name}_ptr": matrix.operand, f"{name}_copy_ptr": copy,
            f"{name}_strides": (matrix.batch_strides[0], *matrix.strides),
            f"{name}_rows": matrix.rows, f"{name}_columns": matrix.columns, f"{name}_padded": padded,
        }  # fmt: skip
        batch_strides = (0 if copied == 1 else matrix.rows * padded, 0, 0)
        copies.append(replace(matrix, operand=copy, strides=(padded, 1), batch_strides=batch_strides))
    plan.launch(realign_kernel, (sum(tiles),), config, n_tiles_of_a=tiles[0], **arguments)
    return copies
