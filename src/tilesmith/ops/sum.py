"""Sums over any dimensions: y = Σ x.

Reads each element once and does one flop on it: memory-bound on every GPU. The gradient is dy expanded along the
summed dimensions, a view that moves nothing.

- A tile has kept elements along one side and summed elements along the other. The memory layout decides only the shape
  of the tile, so that sums over columns are as fast as sums over rows.
- Too few tiles to fill the GPU are split along the summed dimension, and a second launch adds up the partial sums.
- There are no atomics, so the result is the same at every run. Partial sums are in single precision or better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.runs import Runs, as_runs, run_members, run_offsets, run_size
from tilesmith.ops.runtime.arguments import require_floating
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work

Dim = int | tuple[int, ...] | list[int] | None


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return torch.sum(x, dim, keepdim)


@triton.jit
def places_in(run, inner_size, LENGTH: tl.constexpr, FLAT: tl.constexpr):
    """Return `run_members`. FLAT, where there are no outer dimensions, takes no division."""
    return run * LENGTH + tl.arange(0, LENGTH) if FLAT else run_members(run, inner_size, LENGTH)


@triton.jit
def offsets_in(run, inner_size, outer_size, strides, LENGTH: tl.constexpr, FLAT: tl.constexpr):
    """Return `run_offsets`. FLAT, where there are no outer dimensions, takes no division."""
    if FLAT:
        offsets = places_in(run, inner_size, LENGTH, FLAT).to(tl.int64) * strides[2]  # [LENGTH]
    else:
        offsets = run_offsets(run, inner_size, outer_size, strides, LENGTH)
    return offsets


@triton.jit(do_not_specialize=["kept_inner", "reduced_inner", "n_pieces", "pieces_per_split", "split_stride"])
def sum_kernel(
    x_ptr, y_ptr, kept_strides, reduced_strides, y_strides, kept_inner, kept_outer, reduced_inner, reduced_outer,
    n_pieces, pieces_per_split, split_stride,
    KEPT_ALIGNED: tl.constexpr, REDUCED_ALIGNED: tl.constexpr, UNIT: tl.constexpr, FLAT: tl.constexpr,
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """KEPT sums per program, over one split: some pieces of REDUCED elements of each sum.

    UNIT divides the summed elements of a run and every stride from run to run. 1 says nothing.
    """
    group, split = tl.program_id(0), tl.program_id(1)
    kept_inner = run_size(kept_inner, KEPT_ALIGNED)
    reduced_inner = run_size(reduced_inner, REDUCED_ALIGNED)
    x_strides = kept_strides
    if UNIT > 1:  # divided and multiplied again, they are the same numbers, and the compiler knows a divisor
        reduced_inner = reduced_inner // UNIT * UNIT
        x_strides = (kept_strides[0] // UNIT * UNIT, kept_strides[1] // UNIT * UNIT, kept_strides[2] // UNIT * UNIT)
    in_kept = places_in(group, kept_inner, KEPT, FLAT) < kept_inner
    x_kept = x_ptr + offsets_in(group, kept_inner, kept_outer, x_strides, KEPT, FLAT)[:, None]
    total = tl.zeros([KEPT, REDUCED], COMPUTE)
    first = split * pieces_per_split
    for piece in range(first, tl.minimum(first + pieces_per_split, n_pieces)):
        in_reduced = places_in(piece, reduced_inner, REDUCED, FLAT) < reduced_inner
        offsets = offsets_in(piece, reduced_inner, reduced_outer, reduced_strides, REDUCED, FLAT)[None, :]
        mask = in_kept[:, None] & in_reduced[None, :]
        total += tl.load(x_kept + offsets, mask=mask, other=0.0).to(COMPUTE)  # [KEPT, REDUCED]
    y_pointers = y_ptr + split.to(tl.int64) * split_stride
    y_pointers += offsets_in(group, kept_inner, kept_outer, y_strides, KEPT, FLAT)
    tl.store(y_pointers, tl.sum(total, axis=1).to(y_ptr.dtype.element_ty), mask=in_kept)


@dataclass(frozen=True)
class SumConfig(Config):
    """Each program keeps KEPT sums, and adds up REDUCED elements of each at a time.

    `flat`: where neither side has outer dimensions, no address takes a division, and rows of any multiple of 16 bytes
    are read in 16-byte vectors.
    """

    KEPT: int = 1
    REDUCED: int = 4096
    programs_per_multiprocessor: int = 8
    flat: bool = False


def sum_config(kept: Runs, reduced: Runs, multiprocessors: int) -> SumConfig:
    """Return a tile of 4096 elements, 32 per thread of four warps, along the side of neighbours in memory.

    16384×4096 bf16 on an H200: 36.3 µs over rows (44.2 with eight warps), 45.1 over columns (50.0 with half as many
    programs and eight warps), 38.1 over all.
    """
    kept_side, reduced_side = bucket(kept.inner), bucket(reduced.inner)
    kept_stride, reduced_stride = kept.strides[0][2], reduced.strides[0][2]
    if 0 < reduced_stride <= kept_stride or kept_stride == 0:
        if is_flat(kept, reduced) and (config := row_config(kept.inner, reduced.inner, multiprocessors)):
            return config
        reduced_side = min(reduced_side, 4096)
        kept_side = min(kept_side, 4096 // reduced_side)
    else:  # a short summed side, since threads exchange the sums along it at the end
        kept_side = min(kept_side, 4096 // min(reduced_side, 16))
        reduced_side = min(reduced_side, 4096 // kept_side)
    warps = min(max(kept_side * reduced_side // 1024, 1), 4)
    return SumConfig(num_warps=warps, KEPT=kept_side, REDUCED=reduced_side)


def is_flat(kept: Runs, reduced: Runs) -> bool:
    return kept.sizes[:2] == reduced.sizes[:2] == (1, 1)


def row_config(rows: int, columns: int, multiprocessors: int) -> SumConfig | None:
    """Return the configuration for rows of a matrix that tiles of 4096 elements sum slower; None for other rows.

    µs on an H200 (with those tiles; PyTorch). A program per multiprocessor or fewer, and rows of up to two pieces:
    80×24600 bf16 3.9 (6.7; 5.7), 100×40000 fp32 6.6 (12.7; 12.0). Up to four: 268×16384 fp32 6.5 (9.8; 7.9), 500×9000
    bf16 5.3 (5.5; 5.9). More, where tiles waste a fifth of their elements: 30000×5000 bf16 80.5 (103; 79.0).
    """
    if columns > 4096 and rows <= 4 * multiprocessors and not (rows <= multiprocessors and columns > 2 * LONGEST_PIECE):
        reduced = min(bucket(columns), LONGEST_PIECE if rows <= multiprocessors else 8192)
        return SumConfig(num_warps=reduced // 1024, REDUCED=reduced, flat=True)
    tiles = triton.cdiv(columns, min(bucket(columns), 4096)) * min(bucket(columns), 4096)
    if rows > 4 * multiprocessors and columns <= 0.8 * tiles and triton.cdiv(columns, 1024) * 1024 < tiles:
        return SumConfig(num_warps=4, KEPT=4, REDUCED=1024, flat=True)
    return None


LONGEST_PIECE = 32768  # of a row: 32 warps, the most that a program has
# Of a split: fewer turns of its loop cost less than a second launch.
FEWEST_PIECES = 4


@kernels("sum_forward")
def forward(x: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    """Return the sums, contiguous."""
    return torch.empty(_result_shape(x.shape, dim, keepdim), dtype=x.dtype, device=x.device)


def _result_shape(shape: Sequence[int], dim: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """Return the shape of the result."""
    return tuple(1 if place in dim else size for place, size in enumerate(shape) if keepdim or place not in dim)


@forward.plan
def plan_forward(plan: Plan, x: Operand, dim: Sequence[int], keepdim: bool) -> Operand:
    y = plan.empty(_result_shape(x.shape, dim, keepdim), x.dtype)
    kept, reduced = _sides(x, dim)
    default = sum_config(kept, reduced, plan.multiprocessors)
    side = "flat rows" if default.flat else "rows" if default.REDUCED >= default.KEPT else "columns"
    config = plan.choose(default, side, bucket(reduced.inner), x.dtype)
    groups, pieces = kept.count(config.KEPT), reduced.count(config.REDUCED)
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    splits = min(programs // max(groups, 1), pieces // FEWEST_PIECES)
    if splits <= 1:
        _launch(plan, x, y, kept, reduced, config, pieces)
        return y
    pieces_per_split = triton.cdiv(pieces, splits)
    splits = triton.cdiv(pieces, pieces_per_split)
    partials = plan.empty((splits, kept.elements), _sum_dtype(x.dtype))
    into_partials = Runs(kept.sizes, (kept.strides[0], kept.contiguous))
    _launch(plan, x, partials, into_partials, reduced, config, pieces_per_split, splits)
    out_of_partials = Runs(kept.sizes, (kept.contiguous, kept.strides[1]))
    each_split = Runs((1, 1, splits), ((0, 0, kept.elements),))
    config = sum_config(out_of_partials, each_split, plan.multiprocessors)
    _launch(plan, partials, y, out_of_partials, each_split, config, each_split.count(config.REDUCED))
    return y


def _sides(x: Operand, dim: Sequence[int]) -> tuple[Runs, Runs]:
    """Return the kept dimensions, of x and of the result, and the summed dimensions of x."""
    kept = [place for place in range(len(x.shape)) if place not in dim]
    kept_shape = tuple(x.shape[place] for place in kept)
    return (
        as_runs(kept_shape, tuple(x.strides[place] for place in kept), _contiguous(kept_shape)),
        as_runs(tuple(x.shape[place] for place in dim), tuple(x.strides[place] for place in dim)),
    )


def _launch(
    plan: Plan, x: Operand, y: Operand, kept: Runs, reduced: Runs, config: SumConfig, pieces_per_split: int,
    splits: int = 1,
) -> None:  # fmt: skip
    """Plan y[split, kept] = Σ of x[kept, reduced] over the pieces of each split."""
    flat = config.flat and is_flat(kept, reduced)
    plan.launch(
        sum_kernel, (kept.count(config.KEPT), splits), config,
        x_ptr=x, y_ptr=y, kept_strides=kept.strides[0], reduced_strides=reduced.strides[0], y_strides=kept.strides[1],
        kept_inner=kept.inner, kept_outer=kept.sizes[1], reduced_inner=reduced.inner, reduced_outer=reduced.sizes[1],
        n_pieces=reduced.count(config.REDUCED), pieces_per_split=pieces_per_split, split_stride=kept.elements,
        KEPT_ALIGNED=kept.aligned, REDUCED_ALIGNED=reduced.aligned, COMPUTE=compute_dtype(x.dtype),
        FLAT=flat, UNIT=_known_divisor(x, kept, reduced) if flat else 1,
    )  # fmt: skip


def _known_divisor(x: Operand, kept: Runs, reduced: Runs) -> int:
    """Return the elements of a 16-byte vector if every summed run of x is whole aligned vectors, else 1."""
    unit = 16 // x.element_bytes
    numbers = (reduced.inner, *reduced.strides[0][:2], *kept.strides[0])
    return unit if x.aligned and reduced.strides[0][2] == 1 and not any(one % unit for one in numbers) else 1


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of partial sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def native(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return torch.sum(x, dim, keepdim, dtype=x.dtype)  # named, so that autocast does not change it


def prepare(x: Tensor, dim: Dim, keepdim: bool) -> tuple[Tensor, tuple[int, ...], bool]:
    """Return the summed dimensions in order, counted from the first. As in PyTorch, none given means all."""
    if dim is None or dim in ((), []) or x.ndim == 0:
        return x, tuple(range(x.ndim)), keepdim
    wanted = (dim,) if isinstance(dim, int) else dim
    # Compared one by one: torch.compile with dynamic sizes traces `in` as False.
    return x, tuple(place for place in range(x.ndim) if any(place == one % x.ndim for one in wanted)), keepdim


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, context.dim, context.keepdim = inputs
    context.shape = x.shape


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, None, None]:
    if not context.keepdim:
        for place in context.dim:
            dy = dy.unsqueeze(place)
    return dy.expand(context.shape), None, None


@operator("sum", reference=reference, native=native, forward=forward, save=save, gradient=gradient, prepare=prepare)
def sum(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the sum over one dimension, several, or all, in x's dtype, accumulated in single precision or better.

    As in torch.sum, a negative `dim` counts from the last dimension, and `keepdim` leaves summed dimensions with one
    element. The result is contiguous, and the same at every run.
    """
    require_floating("sum", x=x)
    if dim is not None:
        _require_dimensions_of(x, dim)
    if not isinstance(keepdim, bool):
        raise TypeError(f"sum: keepdim is a {type(keepdim).__name__}, but must be a bool")
    return x


def _require_dimensions_of(x: Tensor, dim: object) -> None:
    places = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    dimensions = x.ndim or 1
    for place in places:
        if isinstance(place, bool) or not isinstance(place, int):
            raise TypeError(f"sum: dim is {dim!r}, but must be an int, several of them, or None")
        if not -dimensions <= place < dimensions:
            raise ValueError(f"sum: dim is {dim}, but must be from {-dimensions} to {dimensions - 1}")
    if len({place % dimensions for place in places}) != len(places):
        raise ValueError(f"sum: dim is {dim}, which names a dimension twice")


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Return x, and the dimension that the names of the case's sizes stand for.

    Elements are around one: a sum that cancels would leave only rounding errors.
    """
    dim = {"rows": -1, "batch": 0, "height": None, "images": (0, 2)}[next(iter(case.sizes))]
    return {"x": layout(1 + torch.randn(*case.sizes.values(), dtype=dtype, device=device)), "dim": dim}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = math.prod(case.sizes.values())
    results = math.prod(size for name, size in case.sizes.items() if name in ("rows", "features", "channels"))
    moved = (elements + results) * dtype.itemsize
    return Cost(forward=Work(bytes=moved, flops=elements), backward=Work(bytes=0, flops=0))


SPEC = Spec(
    name="sum",
    op=sum,
    reference=reference,
    formula="y = Σ x",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=7, cols=33),
        Case("columns-odd", batch=300, features=33),
        Case("all-odd", height=3, width=9001),
        Case("several-odd", images=3, channels=5, pixels=77),
        Case("wide", rows=3, cols=20000),
        Case("channels", images=64, channels=256, pixels=3136),
        Case("all", height=16384, width=4096),
        Case("columns", batch=16384, features=4096),
        Case("rows", rows=16384, cols=4096),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native},
)
