"""Transpose: y[…, c, r] = x[…, r, c], as a copy in contiguous memory.

Moves two elements per output (read x, write y) and computes nothing. Loads and stores must both be coalesced: a tile
is loaded in x's order, exchanged between threads through shared memory, and stored in y's order.

`x.mT` is a view and moves nothing: use it where the next operator takes any strides. This operator is for code that
needs contiguous rows. The gradient is the transpose of dy as a view, which moves nothing.
"""

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
    NESTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one matrix: GROUP tiles down, then one across.

    Programs that run at the same time then read and write long runs of memory.
    """
    n_columns = sizes[0]
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


def transpose_config(rows: int, columns: int, vectors: bool) -> TransposeConfig:
    """Return a tile of 128 × 128, which reads and writes runs of at least 256 bytes.

    If one side is shorter, the other may be longer. Without vectors every element has an address in registers, so that
    only 64 × 64 fit.
    """
    side = 128 if vectors else 64
    height = min(bucket(rows), side)
    width = min(bucket(columns), side * side // height, 1024)
    height = min(bucket(rows), side * side // width, 1024)
    return TransposeConfig(num_warps=8 if height * width > 4096 else 4, ROWS=height, COLUMNS=width)


def in_vectors(*operands: Operand) -> bool:
    """Return whether loads and stores can be vectors: rows start at multiples of 16 elements."""
    return all(one.aligned and all(stride == 1 or stride % 16 == 0 for stride in one.strides[-2:]) for one in operands)


def plan_transpose(plan: Plan, x: Operand, y: Operand) -> None:
    """Plan y[…, c, r] = x[…, r, c] for any strides of x and y."""
    *batch, rows, columns = x.shape
    walk = as_rows((*batch, columns), (*x.strides[:-2], x.strides[-1]), y.strides[:-1])
    vectors = in_vectors(x, y)
    config = plan.choose(transpose_config(rows, columns, vectors), bucket(rows), bucket(columns), x.dtype, vectors)
    tiles = triton.cdiv(rows, config.ROWS) * triton.cdiv(columns, config.COLUMNS)
    plan.launch(
        transpose_kernel, (walk.rows * tiles,), config,
        x_ptr=x, y_ptr=y, x_row_stride=x.strides[-2], y_row_stride=y.strides[-1],
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
