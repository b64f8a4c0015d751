"""Transpose: y[…, c, r] = x[…, r, c], as a copy in contiguous memory.

Moves two elements per output (read x, write y) and computes nothing. Loads and stores must both be coalesced: a tile
is loaded in x's order, exchanged between threads through shared memory, and stored in y's order.

`x.mT` is a view and moves nothing: use it where the next operator takes any strides. This operator is for code that
needs contiguous rows. The gradient is the transpose of dy as a view, which moves nothing.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.runtime.arguments import require_dimensions, require_floating
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor) -> Tensor:
    return x.mT.clone(memory_format=torch.contiguous_format)


@triton.jit
def transpose_kernel(
    x_ptr, y_ptr, x_strides, x_row_stride, y_strides, y_row_stride, n_rows, sizes,
    NESTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, BY_AXES: tl.constexpr,
):  # fmt: skip
    """One tile of one matrix: GROUP tiles down, then one across.

    Programs that run at the same time then read and write long runs of memory. BY_AXES, the axes of the grid are
    matrices, tiles down and tiles across: few programs all run at the same time, and need not divide.
    """
    n_columns = sizes[0]
    if BY_AXES:
        matrix, down, across = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    else:
        tiles_down, tiles_across = tl.cdiv(n_rows, ROWS), tl.cdiv(n_columns, COLUMNS)
        tiles = tiles_down * tiles_across
        matrix, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
        group = tile // (GROUP * tiles_across)
        group_height = tl.minimum(tiles_down - group * GROUP, GROUP)
        down = group * GROUP + tile % (GROUP * tiles_across) % group_height
        across = tile % (GROUP * tiles_across) // group_height
    rows = down.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = across.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    matrices = matrix + tl.arange(0, 1)
    x_offsets = tile_offsets(matrices, columns, sizes, x_strides, NESTED) + (rows * x_row_stride)[:, None]
    y_offsets = tile_offsets(matrices, columns, sizes, y_strides, NESTED) + (rows * y_row_stride)[:, None]
    tl.store(y_ptr + y_offsets, tl.load(x_ptr + x_offsets, mask=mask), mask=mask)  # [ROWS, COLUMNS]


@dataclass(frozen=True)
class TransposeConfig(Config):
    """Each program takes a tile of ROWS × COLUMNS; GROUP tiles down come before one across."""

    ROWS: int = 128
    COLUMNS: int = 128
    GROUP: int = 8

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """Return how many tiles a matrix has, down and across."""
        return triton.cdiv(rows, self.ROWS), triton.cdiv(columns, self.COLUMNS)


def transpose_config(rows: int, columns: int, vectors: bool) -> TransposeConfig:
    """Return a tile of 128 × 128, which reads and writes runs of at least 256 bytes.

    If one side is shorter, the other may be longer. Without vectors every element has an address in registers, so that
    only 64 × 64 fit.
    """
    return _tile(rows, columns, 128 if vectors else 64)


def _tile(rows: int, columns: int, side: int) -> TransposeConfig:
    height = min(bucket(rows), side)
    width = min(bucket(columns), side * side // height, 1024)
    height = min(bucket(rows), side * side // width, 1024)
    return TransposeConfig(num_warps=8 if height * width > 4096 else 4, ROWS=height, COLUMNS=width)


def few_tiles_config(rows: int, columns: int) -> TransposeConfig:
    """Return a tile of 32 × 32, or as many elements of fewer rows or columns, for matrices of few tiles.

    In µs on an H200, with the grid by axes (with larger tiles and divisions): 553×517 bf16 2.2 (4.3), 300×1001 fp32 2.4
    (3.9), 1100×1300 bf16 3.7 (5.5), one row of 28,672 1.7 (1.9).
    """
    return _tile(rows, columns, 32)


FEW_TILES = 4  # for each multiprocessor
MOST_ON_AN_AXIS = 65535  # the size of a grid's second and third axes


def in_vectors(*operands: Operand) -> bool:
    """Return whether loads and stores can be vectors: rows start at multiples of 16 elements."""
    return all(one.aligned and all(stride == 1 or stride % 16 == 0 for stride in one.strides[-2:]) for one in operands)


def plan_transpose(plan: Plan, x: Operand, y: Operand) -> None:
    """Plan y[…, c, r] = x[…, r, c] for any strides of x and y."""
    *batch, rows, columns = x.shape
    vectors = in_vectors(x, y)
    default = transpose_config(rows, columns, vectors)
    matrices = math.prod(batch)
    is_small = matrices * math.prod(default.tiles(rows, columns)) <= FEW_TILES * plan.multiprocessors
    default = few_tiles_config(rows, columns) if is_small else default
    name = "few tiles" if is_small else "tiles"
    config = plan.choose(default, name, bucket(rows), bucket(columns), x.dtype, vectors)
    tiles_down, tiles_across = config.tiles(rows, columns)
    by_axes = is_small and max(tiles_down, tiles_across) <= MOST_ON_AN_AXIS
    (*x_outer, x_row, x_column), (*y_outer, y_column, y_row) = x.strides, y.strides
    if by_axes:  # one row or one column is a copy: a stride of 0 cannot hide where vectors begin
        x_row, y_row = (0, 0) if rows == 1 else (x_row, y_row)
        x_column, y_column = (0, 0) if columns == 1 else (x_column, y_column)
    walk = as_rows((*batch, columns), (*x_outer, x_column), (*y_outer, y_column))
    plan.launch(
        transpose_kernel,
        (walk.rows, tiles_down, tiles_across) if by_axes else (walk.rows * tiles_down * tiles_across,), config,
        x_ptr=x, y_ptr=y, x_row_stride=x_row, y_row_stride=y_row, BY_AXES=by_axes,
        **{**walk.arguments("x", "y"), "n_rows": rows},
    )  # fmt: skip


@kernels("transpose_forward")
def forward(x: Tensor) -> Tensor:
    return torch.empty_like(x.mT, memory_format=torch.contiguous_format)


@forward.plan
def plan_forward(plan: Plan, x: Operand) -> Operand:
    *batch, rows, columns = x.shape
    y = plan.empty((*batch, columns, rows), x.dtype)
    plan_transpose(plan, x, y)
    return y


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep nothing: the gradient needs only dy."""


def gradient(context: Any, dy: Tensor) -> Tensor:
    return dy.mT


@operator("transpose", reference=reference, forward=forward, save=save, gradient=gradient)
def transpose(x: Tensor) -> Tensor:
    """Return a contiguous copy of x with its last two dimensions exchanged; `x.mT` is the view without a copy."""
    require_floating("transpose", x=x)
    require_dimensions("transpose", "x", x, at_least=2)
    return x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {"x": layout(torch.randn(case.batch, case.rows, case.cols, dtype=dtype, device=device))}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    moved = Work(bytes=2 * case.batch * case.rows * case.cols * dtype.itemsize, flops=0)
    return Cost(forward=moved, backward=Work(bytes=0, flops=0))


SPEC = Spec(
    name="transpose",
    op=transpose,
    reference=reference,
    formula="y[…, c, r] = x[…, r, c]",
    cases=[
        Case("one", batch=1, rows=1, cols=1),
        Case("odd", batch=2, rows=7, cols=33),
        Case("past-a-tile", batch=3, rows=131, cols=150),
        Case("large", batch=1, rows=8192, cols=8192),
        Case("larger", batch=1, rows=16384, cols=16384),
        Case("batched", batch=512, rows=256, cols=256),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
