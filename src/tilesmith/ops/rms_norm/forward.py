"""The forward kernels, their forms and their plan: RMSNorm alone, of a sum that is kept, or followed by a ReLU."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norms.any_width import AnyWidthForward
from tilesmith.ops.device.norms.forward import ForwardConfig, ForwardProblem, RowsInBlocks, RowsInRegisters, plan_rows
from tilesmith.ops.device.norms.persistent_forward import PersistentForward
from tilesmith.ops.device.norms.rows import RowTensor, RowTile, Vector, factor_of, load_tile, load_weight, store_tile
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


class Summands(NamedTuple):
    """x, the residual that is added to x, and the sum that is written; the last two only where there is a residual."""

    x: RowTensor
    residual: RowTensor
    total: RowTensor


@triton.jit
def load_x_or_sum(
    summands, tile, HAS_RESIDUAL: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr
):
    """Return a tile of x, or of x + residual rounded to its dtype in memory: the kernel norms the sum it returns."""
    x = load_tile(summands.x, tile, NESTED, COMPUTE, EVICTION)  # [ROWS, BLOCK_SIZE]
    if HAS_RESIDUAL:
        residual = load_tile(summands.residual, tile, NESTED, COMPUTE, EVICTION)  # [ROWS, BLOCK_SIZE]
        x = (x + residual).to(summands.total.pointer.dtype.element_ty).to(COMPUTE)
    return x


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_kernel(
    x_ptr, y_ptr, weight_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows per program, in registers between the sum of squares and the scaling."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    mask = (rows < n_rows)[:, None] & in_row[None, :]
    tile = RowTile(rows, columns, mask, sizes)
    total = RowTensor(sum_ptr, sum_strides)
    summands = Summands(RowTensor(x_ptr, x_strides), RowTensor(residual_ptr, residual_strides), total)
    x = load_x_or_sum(summands, tile, HAS_RESIDUAL, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    if HAS_RESIDUAL:
        store_tile(total, x, tile, NESTED)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)[:, None]  # [ROWS, BLOCK_SIZE]
    y *= load_weight(Vector(weight_ptr, weight_stride), columns, in_row, HAS_WEIGHT, COMPUTE, "")
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # keeps NaN, as PyTorch does
    store_tile(RowTensor(y_ptr, y_strides), y, tile, NESTED)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_blocks_kernel(
    x_ptr, y_ptr, weight_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in BLOCKS blocks of columns: read once for the sum, and again from cache for the result.

    Rows that stay out of the registers leave room for more CTAs, and so for more loads in flight. On an H200 in bf16:
    16384×8192 takes 127 µs, 131 in registers; 4096×32768 takes 129 µs, 138 in registers.
    """
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    total = RowTensor(sum_ptr, sum_strides)
    summands = Summands(RowTensor(x_ptr, x_strides), RowTensor(residual_ptr, residual_strides), total)
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        x = load_x_or_sum(summands, RowTile(rows, columns, mask, sizes), HAS_RESIDUAL, NESTED, COMPUTE, "evict_last")
        squares += x * x
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1) / n_columns + eps)[:, None]  # [ROWS, 1]
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = in_rows & in_row[None, :]
        tile = RowTile(rows, columns, mask, sizes)
        x = load_x_or_sum(summands, tile, HAS_RESIDUAL, NESTED, COMPUTE, "evict_first")  # [ROWS, BLOCK_SIZE]
        if HAS_RESIDUAL:
            store_tile(total, x, tile, NESTED)
        y = x * inverse_rms
        y *= load_weight(Vector(weight_ptr, weight_stride), columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        store_tile(RowTensor(y_ptr, y_strides), y, tile, NESTED)


class RmsNormRowsInRegisters(RowsInRegisters):
    kernel = rms_norm_forward_kernel

    def default(self, problem: ForwardProblem) -> ForwardConfig | None:
        rows, block_size = problem.walk.rows, bucket(problem.walk.columns)
        if problem.columns_apart or (problem.padded_row_bytes > 2048 and block_size > 256):
            return None
        if block_size <= 256:  # 4096×128: 2.0 µs in bf16, 2.3 in fp32; with four rows and two warps 2.1 and 2.4
            return ForwardConfig(num_warps=8, ROWS=min(16, bucket(rows)), BLOCK_SIZE=block_size)
        # One warp alone needs no barrier: 16384×512 bf16 from memory takes 9.4 µs with two rows and one warp, 10.4 with
        # eight rows and four warps. Few rows get one CTA each: 1024×512 takes 2.0 µs, 2.5 with eight rows per CTA.
        return ForwardConfig(num_warps=1, ROWS=2 if rows > 4096 else 1, BLOCK_SIZE=block_size)


class RmsNormRowsInBlocks(RowsInBlocks):
    kernel = rms_norm_forward_blocks_kernel

    def default(self, problem: ForwardProblem) -> ForwardConfig:
        if problem.columns_apart:  # neighbouring rows are neighbours in memory: one tile reads them together
            return ForwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, form="blocks")
        # One warp per KiB of row, rounded down: 4096×5120 bf16 takes 22.3 µs with eight warps, 25.3 with sixteen.
        # A residual doubles the bytes: 16384×4096 takes 128 µs with sixteen, 132 with eight.
        columns, element_bytes = problem.walk.columns, problem.dtype.itemsize
        warps = min(max(bucket(columns * problem.bytes_read // 1024 + 1) // 2, 4), 32)
        # Small blocks waste least on odd widths; wide rows need large ones: 4096×32768 129 µs with 8192, 130 with 4096.
        block_bytes = 4096 if columns * element_bytes <= 16384 else 16384
        return ForwardConfig(num_warps=warps, BLOCK_SIZE=block_bytes // element_bytes, form="blocks")


FORMS = (
    PersistentForward(centre=False),
    AnyWidthForward(centre=False),
    RmsNormRowsInRegisters(),
    RmsNormRowsInBlocks(),
)


def plan_norm(
    plan: Plan, x: Operand, weight: Operand | None, eps: float, *, residual: Operand | None = None, relu: bool = False,
    one_plus: bool = False,
) -> tuple[Operand, Operand | None]:  # fmt: skip
    """Plan y = rms_norm(x), or rms_norm(x + residual), with or without a ReLU. Return y, and the sum if any.

    With `one_plus` the factor is 1 + weight.
    """
    y, total = plan.empty_like(x), None
    others = {}
    if residual is not None:
        total = plan.empty_like(x, torch.promote_types(x.dtype, residual.dtype))
        others = {"residual": residual, "sum": total}
    walk = as_rows(x.shape, x.strides, y.strides, *(operand.strides for operand in others.values()))
    arguments = {
        "x_ptr": x, "y_ptr": y, "weight_ptr": weight, "residual_ptr": residual, "sum_ptr": total, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "residual_strides": None, "sum_strides": None,
        "HAS_WEIGHT": factor_of(weight, one_plus), "HAS_RESIDUAL": residual is not None, "RELU": relu,
        "COMPUTE": compute_dtype(x.dtype, *(operand.dtype for operand in others.values())),
        **walk.arguments("x", "y", *others),
    }  # fmt: skip
    bytes_read = x.element_bytes + (residual.element_bytes if residual else 0)
    plan_rows(FORMS, ForwardProblem(plan, walk, x.dtype, bytes_read, arguments))
    return y, total


@kernels("rms_norm_forward")
def forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand | None, eps: float) -> Operand:
    y, _ = plan_norm(plan, x, weight, eps)
    return y
