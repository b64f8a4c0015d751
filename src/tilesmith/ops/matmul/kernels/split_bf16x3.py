"""Split float32 matrices into bf16x3 in memory, once instead of in every tile that reads them.

Splitting moves 10 bytes per element. `ops/device/bf16x3.py` says what bf16x3 is.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.device.bf16x3 import PARTS, bf16_parts
from tilesmith.ops.matmul.kernels.tiles import known_multiple
from tilesmith.ops.matmul.matrices import Matrix, multiple
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def split_tile(
    x_ptr, parts_ptr, tile, x_strides, n_first, depth, part_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Split one tile. Tiles are numbered along depth first, then along rows, then over matrices."""
    tiles_along = part_columns // COLUMNS
    tiles_per_matrix = tl.cdiv(n_first, ROWS) * tiles_along
    matrix = (tile // tiles_per_matrix).to(tl.int64)
    rows = (tile % tiles_per_matrix // tiles_along * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tile % tiles_along * COLUMNS + tl.arange(0, COLUMNS)
    in_rows = (rows < n_first)[:, None]
    offsets = (matrix * x_strides[0] + rows * x_strides[1])[:, None] + (columns.to(tl.int64) * x_strides[2])[None, :]
    x = tl.load(x_ptr + offsets, mask=in_rows & (columns < depth)[None, :], other=0.0)  # [ROWS, COLUMNS]
    high, middle, low = bf16_parts(x)
    places = parts_ptr + ((matrix * n_first + rows) * (PARTS * part_columns))[:, None] + columns[None, :]
    tl.store(places, high, mask=in_rows)
    tl.store(places + part_columns, middle, mask=in_rows)
    tl.store(places + 2 * part_columns, low, mask=in_rows)


@triton.jit(do_not_specialize=["a_first", "b_first", "depth", "n_tiles_of_a", "part_columns"])
def split_bf16x3_kernel(
    a_ptr, b_ptr, a_parts_ptr, b_parts_ptr, a_strides, b_strides, a_first, b_first, depth, n_tiles_of_a,
    part_columns, A_MULTIPLE: tl.constexpr, B_MULTIPLE: tl.constexpr, DEPTH_MULTIPLE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Split both operands in one launch. Strides are of the batch, of a's rows or b's columns, and of depth."""
    depth = known_multiple(depth, DEPTH_MULTIPLE)
    part_columns = known_multiple(part_columns, COLUMNS)
    program = tl.program_id(0)
    if program < n_tiles_of_a:
        a_first = known_multiple(a_first, A_MULTIPLE)
        split_tile(a_ptr, a_parts_ptr, program, a_strides, a_first, depth, part_columns, ROWS, COLUMNS)
    else:
        b_first = known_multiple(b_first, B_MULTIPLE)
        split_tile(b_ptr, b_parts_ptr, program - n_tiles_of_a, b_strides, b_first, depth, part_columns, ROWS, COLUMNS)


@dataclass(frozen=True)
class SplitConfig(Config):
    """Each program splits ROWS × COLUMNS elements, COLUMNS along the depth of the product."""

    ROWS: int = 32
    COLUMNS: int = 64


def plan_split(plan: Plan, a: Matrix, b: Matrix, matrices: int, block: int) -> tuple[Matrix, Matrix, int]:
    """Put the splitting of both operands on the plan; return bf16x3 of a, of b, and the columns of one part.

    The three parts of a row lie side by side, along depth. A part has the depth rounded up to whole blocks, with zeros.
    """
    config = plan.choose(SplitConfig(), "parts", bucket(a.columns))
    counts = [1 if side.is_shared else matrices for side in (a, b)]
    whole = max(block, config.COLUMNS)
    part_columns = triton.cdiv(a.columns, whole) * whole
    sides = (a, b.transposed())
    parts = [
        plan.empty((count, side.rows, PARTS.value * part_columns), torch.bfloat16)
        for count, side in zip(counts, sides, strict=True)
    ]
    tiles = [
        count * triton.cdiv(side.rows, config.ROWS) * (part_columns // config.COLUMNS)
        for count, side in zip(counts, sides, strict=True)
    ]
    plan.launch(
        split_bf16x3_kernel, (sum(tiles),), config,
        a_ptr=a.operand, b_ptr=b.operand, a_parts_ptr=parts[0], b_parts_ptr=parts[1],
        a_strides=(a.batch_strides[0], *sides[0].strides), b_strides=(b.batch_strides[0], *sides[1].strides),
        a_first=a.rows, b_first=b.columns, depth=a.columns, n_tiles_of_a=tiles[0], part_columns=part_columns,
        A_MULTIPLE=multiple(a.rows, a.strides[0]), B_MULTIPLE=multiple(b.columns, b.strides[1]),
        DEPTH_MULTIPLE=multiple(a.columns, a.strides[1], b.strides[0]),
    )  # fmt: skip
    split = [_as_matrix(one) for one in parts]
    return split[0], split[1].transposed(), part_columns


def _as_matrix(parts: Operand) -> Matrix:
    count, rows, columns = parts.shape
    return Matrix(parts, rows, columns, (columns, 1), (rows * columns if count > 1 else 0, 0, 0))
