"""The forward kernels and what they are launched with: RMSNorm alone, of a sum that is kept, or cut off at zero."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norm_rows import load_tile, load_weight, store_tile
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def load_summed(
    x_ptr, residual_ptr, sum_ptr, rows, columns, mask, sizes, x_strides, residual_strides,
    HAS_RESIDUAL: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """A tile of x; where there is a residual, of the sum as memory will hold it: what is normed is what is kept."""
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, EVICTION)
    if HAS_RESIDUAL:
        residual = load_tile(residual_ptr, rows, columns, mask, sizes, residual_strides, NESTED, COMPUTE, EVICTION)
        x = (x + residual).to(sum_ptr.dtype.element_ty).to(COMPUTE)
    return x


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_kernel(
    x_ptr, y_ptr, weight_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows per program, kept in registers between the sum and the scaling."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    mask = (rows < n_rows)[:, None] & in_row[None, :]
    x = load_summed(
        x_ptr, residual_ptr, sum_ptr, rows, columns, mask, sizes, x_strides, residual_strides,
        HAS_RESIDUAL, NESTED, COMPUTE, "",
    )  # fmt: skip
    if HAS_RESIDUAL:
        store_tile(sum_ptr, x, rows, columns, mask, sizes, sum_strides, NESTED)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)[:, None]
    y *= load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # keeps NaN, as PyTorch does
    store_tile(y_ptr, y, rows, columns, mask, sizes, y_strides, NESTED)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_blocks_kernel(
    x_ptr, y_ptr, weight_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in BLOCKS blocks of columns: read once for the sum, and again from cache for the result.

    Registers that hold no row leave room for more programs, and so for more loads under way: on an H200 in bf16
    16384×8192 takes 127 µs, where keeping the row takes 131; 4096×32768 takes 129 µs instead of 138.
    """
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        x = load_summed(
            x_ptr, residual_ptr, sum_ptr, rows, columns, mask, sizes, x_strides, residual_strides,
            HAS_RESIDUAL, NESTED, COMPUTE, "evict_last",
        )  # fmt: skip
        squares += x * x
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1) / n_columns + eps)[:, None]
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = in_rows & in_row[None, :]
        x = load_summed(
            x_ptr, residual_ptr, sum_ptr, rows, columns, mask, sizes, x_strides, residual_strides,
            HAS_RESIDUAL, NESTED, COMPUTE, "evict_first",
        )  # fmt: skip
        if HAS_RESIDUAL:
            store_tile(sum_ptr, x, rows, columns, mask, sizes, sum_strides, NESTED)
        y = x * inverse_rms * load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        store_tile(y_ptr, y, rows, columns, mask, sizes, y_strides, NESTED)


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time."""

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    in_registers: bool = True  # whole rows are kept between the sum and the scaling


def forward_config(walk: Rows, element_bytes: int, bytes_read: int | None = None) -> ForwardConfig:
    """`bytes_read` are those of an element in all the tensors that are read, if it is not x alone."""
    if walk.column_strides[0] != 1:  # neighbouring rows are neighbours in memory: read them together
        return ForwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, in_registers=False)
    block_size = bucket(walk.columns)
    if block_size <= 256:  # 4096×128: 2.0 µs in bf16, 2.3 in fp32; with four rows and two warps 2.1 and 2.4
        return ForwardConfig(num_warps=8, ROWS=min(16, bucket(walk.rows)), BLOCK_SIZE=block_size)
    if block_size * element_bytes <= 2048:
        # A warp alone needs no barrier: 16384×512 bf16 from memory takes 9.4 µs with two rows and one warp, 10.4 with
        # eight and four. Few rows are spread thinner: 1024×512 takes 2.0 µs one by one, 2.5 by eights.
        return ForwardConfig(num_warps=1, ROWS=2 if walk.rows > 4096 else 1, BLOCK_SIZE=block_size)
    # One warp per KiB of row, rounded down: 4096×5120 bf16 takes 22.3 µs with eight warps, 25.3 with sixteen.
    # With a residual twice as much is read: 16384×4096 takes 128 µs with sixteen, 132 with eight.
    row_bytes = walk.columns * element_bytes
    warps = min(max(bucket(walk.columns * (bytes_read or element_bytes) // 1024 + 1) // 2, 4), 32)
    # Small blocks waste least on odd widths; wide rows want large ones: 4096×32768 129 µs with 8192, 130 with 4096.
    block_size = 4096 // element_bytes if row_bytes <= 16384 else 16384 // element_bytes
    return ForwardConfig(num_warps=warps, BLOCK_SIZE=block_size, in_registers=False)


def plan_norm(
    plan: Plan, x: Operand, weight: Operand | None, eps: float, *, residual: Operand | None = None, relu: bool = False
) -> tuple[Operand, Operand | None]:
    """Put on the plan y = rms_norm(x), cut off at zero if so asked; or, with a residual, that of the sum of both, which
    comes second."""
    y, total = plan.empty_like(x), None
    others = {}
    if residual is not None:
        total = plan.empty_like(x, torch.promote_types(x.dtype, residual.dtype))
        others = {"residual": residual, "sum": total}
    walk = as_rows(x.shape, x.strides, y.strides, *(operand.strides for operand in others.values()))
    bytes_read = x.element_bytes + (residual.element_bytes if residual else 0)
    config = plan.choose(forward_config(walk, x.element_bytes, bytes_read), walk.columns_bucket, x.dtype)
    arguments = {
        "x_ptr": x, "y_ptr": y, "weight_ptr": weight, "residual_ptr": residual, "sum_ptr": total, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "residual_strides": None, "sum_strides": None,
        "HAS_WEIGHT": weight is not None, "HAS_RESIDUAL": residual is not None, "RELU": relu,
        "COMPUTE": compute_dtype(x.dtype, *(operand.dtype for operand in others.values())),
        **walk.arguments("x", "y", *others),
    }  # fmt: skip
    grid = (triton.cdiv(walk.rows, config.ROWS) if walk.columns else 0,)
    if config.in_registers and walk.columns <= config.BLOCK_SIZE:
        plan.launch(rms_norm_forward_kernel, grid, config, **arguments)
    else:
        blocks = triton.cdiv(walk.columns, config.BLOCK_SIZE)
        plan.launch(rms_norm_forward_blocks_kernel, grid, config, **arguments, BLOCKS=blocks)
    return y, total


@kernels("rms_norm_forward")
def forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand | None, eps: float) -> Operand:
    y, _ = plan_norm(plan, x, weight, eps)
    return y
