"""The gradients: with dz = dy · act'(z),

da = dz·bᵀ,    db = aᵀ·dz,    dbias = Σ over rows of dz,

each summed over dimensions that were broadcast. The forward's kernels compute both products, on transposed views. The
forward keeps a, b, and the tensor that act' needs: z, or y for relu.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.matmul.kernels.epilogue import activation_slope
from tilesmith.ops.matmul.matrices import Matrix, as_left, as_result, as_right, factors, with_batch_in_rows
from tilesmith.ops.matmul.planning.problem import Product
from tilesmith.ops.matmul.planning.product import plan_product
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows", "rows_per_part"])
def finish_gradient_kernel(
    dy_ptr, z_ptr, dz_ptr, partials_ptr, dy_strides, z_strides, dz_strides, n_rows, rows_per_part, sizes,
    ACTIVATION: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute dz for a part of the rows of a block of columns, and the partial sum of dbias over these rows."""
    n_columns = sizes[0]
    blocks_per_row = tl.cdiv(n_columns, COLUMNS)
    columns = tl.program_id(0) % blocks_per_row * COLUMNS + tl.arange(0, COLUMNS)
    part = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    total = tl.zeros([ROWS, COLUMNS], COMPUTE)
    for start in range(0, rows_per_part, ROWS):
        rows = part * rows_per_part + start + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
        dz = tl.load(dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED), mask=mask, other=0.0).to(COMPUTE)
        # dz: [ROWS, COLUMNS]
        if z_ptr is not None:
            z_pointers = z_ptr + tile_offsets(rows, columns, sizes, z_strides, NESTED)
            dz *= activation_slope(tl.load(z_pointers, mask=mask, other=0.0).to(COMPUTE), ACTIVATION)
        if dz_ptr is not None:
            dz_pointers = dz_ptr + tile_offsets(rows, columns, sizes, dz_strides, NESTED)
            tl.store(dz_pointers, dz.to(dz_ptr.dtype.element_ty), mask=mask)
        total += dz
    if partials_ptr is not None:
        tl.store(partials_ptr + part * n_columns + columns, tl.sum(total, axis=0), mask=columns < n_columns)


@dataclass(frozen=True)
class FinishGradientConfig(Config):
    """Each program takes ROWS × COLUMNS elements at a time."""

    ROWS: int = 8
    COLUMNS: int = 256
    programs_per_multiprocessor: int = 4


@kernels("matmul_backward")
def backward(
    dy: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, kept: Tensor | None, activation: str, tf32: bool,
    wants_a: bool, wants_b: bool, wants_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return da, db and dbias, empty where not wanted. `kept` is z, or y for relu, or None without activation."""
    return (
        torch.empty_like(a) if wants_a else a.new_empty(0),
        torch.empty_like(b) if wants_b else a.new_empty(0),
        a.new_empty(0) if bias is None or not wants_bias else bias.new_empty(bias.shape),
    )


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, a: Operand, b: Operand, bias: Operand | None, kept: Operand | None, activation: str,
    tf32: bool, *wants: bool,
) -> tuple[Operand, Operand, Operand]:  # fmt: skip
    """Put da, db and dbias on the plan, those of them that `wants` asks for."""
    wants_a, wants_b, wants_bias = wants
    left, right, batch = factors(a, b)
    da = plan.empty_like(a) if wants_a else plan.empty((0,), a.dtype)
    db = plan.empty_like(b) if wants_b else plan.empty((0,), a.dtype)
    dbias = plan.empty(bias.shape, bias.dtype) if bias is not None and wants_bias else plan.empty((0,), a.dtype)
    dz = _plan_finish_gradient(plan, dy, kept, dbias, left, right, activation, wants_a or wants_b)
    if wants_a:
        plan_gradient_of_left(plan, dz, right, as_left(da, batch), batch, tf32)
    if wants_b:
        plan_gradient_of_right(plan, left, dz, as_right(db, batch), batch, tf32)
    return da, db, dbias


def _plan_finish_gradient(
    plan: Plan, dy: Operand, z: Operand | None, dbias: Operand, left: Matrix, right: Matrix, activation: str,
    wants_dz: bool,
) -> Matrix:  # fmt: skip
    """Return dz, and put dbias on the plan if it has elements. Without activation dz is dy itself."""
    dtype = left.operand.dtype
    dz = plan.empty(dy.shape, dtype) if wants_dz and (activation or dy.dtype != dtype) else None
    wants_bias = 0 not in dbias.shape
    if dz is not None or wants_bias:
        sides = [as_result(dz or dy, left, right), as_result(dy, left, right), as_result(z or dy, left, right)]
        shape = (*torch.broadcast_shapes(left.operand.shape[:-2], right.operand.shape[:-2]), left.rows, right.columns)
        walk = as_rows(shape, *((*side.batch_strides, *side.strides) for side in sides))
        partials = _plan_finish_gradient_tiles(plan, walk, dy, z, dz, wants_bias, activation)
        if partials is not None:
            plan_sum_of_partials(plan, partials, dbias, compute_dtype(dtype))
    return as_result(dz or dy, left, right)


def _plan_finish_gradient_tiles(
    plan: Plan, walk: Rows, dy: Operand, z: Operand | None, dz: Operand | None, wants_bias: bool, activation: str
) -> Operand | None:
    """Put the kernel on the plan; return the partial sums of dbias, one row for each part of the rows."""
    columns = min(bucket(walk.columns), 256)
    default = FinishGradientConfig(num_warps=4, ROWS=2048 // columns, COLUMNS=columns)
    config = plan.choose(default, "finish", walk.columns_bucket, dy.dtype)
    blocks = triton.cdiv(walk.columns, config.COLUMNS)
    groups = triton.cdiv(walk.rows, config.ROWS)
    parts = max(plan.multiprocessors * config.programs_per_multiprocessor // max(blocks, 1), 1)
    rows_per_part = config.ROWS * (triton.cdiv(groups, parts) if wants_bias else 1)
    parts = triton.cdiv(walk.rows, rows_per_part) if walk.rows else 0
    compute = torch.float64 if dy.dtype == torch.float64 else torch.float32
    partials = plan.empty((parts, walk.columns), compute) if wants_bias else None
    plan.launch(
        finish_gradient_kernel, (parts * blocks,), config,
        dy_ptr=dy, z_ptr=z, dz_ptr=dz, partials_ptr=partials, rows_per_part=rows_per_part, ACTIVATION=activation,
        COMPUTE=compute_dtype(dy.dtype), **walk.arguments("dz", "dy", "z"),
    )  # fmt: skip
    return partials


@kernels("matmul_finish_gradient")
def finish_gradient(dy: Tensor, kept: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return dz and dbias of matrices, for callers that multiply themselves. `kept` is z, or y for relu."""
    return torch.empty_like(dy), dy.new_empty(dy.shape[1])


@finish_gradient.plan
def plan_finish_gradient(plan: Plan, dy: Operand, kept: Operand, activation: str) -> tuple[Operand, Operand]:
    dz, dbias = plan.empty_like(dy), plan.empty(dy.shape[1:], dy.dtype)
    walk = as_rows(dy.shape, dz.strides, dy.strides, kept.strides)
    partials = _plan_finish_gradient_tiles(plan, walk, dy, kept, dz, True, activation)
    assert partials is not None
    plan_sum_of_partials(plan, partials, dbias, compute_dtype(dy.dtype))
    return dz, dbias


def plan_gradient_of_left(
    plan: Plan, dz: Matrix, b: Matrix, da: Matrix, batch: tuple[int, ...], tf32: bool
) -> None:  # fmt: skip
    """Put da = dz·bᵀ on the plan; a batch that parts b is one product."""
    folded = with_batch_in_rows(batch, dz, da) if b.is_shared and not summed_dimensions(da, batch) else None
    if folded is None:
        plan_product(plan, _with_summed_first(Product(dz, b.transposed(), da, batch, tf32)))
    else:
        plan_product(plan, Product(folded[0], replace(b.transposed(), batch_strides=()), folded[1], (), tf32))


def plan_gradient_of_right(
    plan: Plan, a: Matrix, dz: Matrix, db: Matrix, batch: tuple[int, ...], tf32: bool
) -> None:  # fmt: skip
    """Put db = aᵀ·dz on the plan; for a batch that parts b, the sum over the batch is part of the depth."""
    folded = with_batch_in_rows(batch, a, dz) if db.is_shared else None
    if folded is None:
        plan_product(plan, _with_summed_first(Product(a.transposed(), dz, db, batch, tf32)))
    else:
        plan_product(plan, Product(folded[0].transposed(), folded[1], replace(db, batch_strides=()), (), tf32))


def summed_dimensions(gradient: Matrix, batch: tuple[int, ...]) -> list[int]:
    """Return the batch dimensions along which the operand was broadcast: its gradient is summed over them."""
    return [place for place, stride in enumerate(gradient.batch_strides) if stride == 0 and batch[place] != 1]


def _with_summed_first(product: Product) -> Product:
    """Return the product with the summed batch dimensions first."""
    first = summed_dimensions(product.y, product.batch)
    order = first + [place for place in range(len(product.batch)) if place not in first]

    def ordered(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[place] for place in order)

    a, b, y = (replace(side, batch_strides=ordered(side.batch_strides)) for side in (product.a, product.b, product.y))
    return replace(product, a=a, b=b, y=y, batch=ordered(product.batch), summed=len(first))
