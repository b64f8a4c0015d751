"""Putting one product y = act(a·b · scales + bias) + addend on a plan, in the form and with the tiles that its
config says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
import triton

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.matmul.hopper.exact_registers import ROWS, matmul_hopper_rows_kernel
from tilesmith.ops.matmul.hopper.exact_shared import UNIT, matmul_hopper_exact_kernel
from tilesmith.ops.matmul.hopper.half import plan_hopper_product, takes_product
from tilesmith.ops.matmul.kernels.pointers import matmul_pointers_kernel
from tilesmith.ops.matmul.kernels.split_bf16x3 import plan_planes
from tilesmith.ops.matmul.kernels.split_k_sum import sum_config, sum_shares_kernel
from tilesmith.ops.matmul.kernels.tma import matmul_descriptors_kernel
from tilesmith.ops.matmul.matrices import Matrix, multiple
from tilesmith.ops.matmul.planning.choose import Look, ProductConfig, product_config
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision


@dataclass(frozen=True)
class Finish:
    """What is done to the sums of products before they are stored; `z`: where to, besides, before the activation;
    `addend`: what is added after it.

    Memory for z and that of the addend are laid out as that for the result.
    """

    bias: Operand | None = None
    activation: str = ""
    scale_a: Operand | None = None
    scale_b: Operand | None = None
    z: Operand | None = None
    addend: Operand | None = None

    def arguments(self) -> dict[str, object]:
        return {
            "bias_ptr": self.bias, "scale_a_ptr": self.scale_a, "scale_b_ptr": self.scale_b, "addend_ptr": self.addend,
            "bias_stride": _stride(self.bias), "scale_a_stride": _stride(self.scale_a),
            "scale_b_stride": _stride(self.scale_b), "ACTIVATION": self.activation,
        }  # fmt: skip


def _stride(vector: Operand | None) -> int:
    """Between the elements of a vector; a single one stands for all of its rows or columns."""
    return vector.strides[0] if vector is not None and prod(vector.shape) > 1 else 0


@dataclass(frozen=True)
class Product:
    """One product of matrices for every place in a batch, whose first `summed` dimensions are summed over."""

    a: Matrix
    b: Matrix
    y: Matrix
    batch: tuple[int, ...]
    tf32: bool
    summed: int = 0
    finish: Finish = Finish()

    @property
    def depth(self) -> int:
        return self.a.columns

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    def tiles(self, block_m: int, block_n: int) -> int:
        """Of so many rows and columns, in all matrices."""
        tiles: int = triton.cdiv(self.y.rows, block_m) * triton.cdiv(self.y.columns, block_n)
        return tiles * self.matrices

    @property
    def nested(self) -> bool:
        """Whether the batch has more than one dimension that does not merge with the next."""
        return self.batch[1:] not in ((), (1, 1))

    def transposed(self) -> Product:
        """The same as yᵀ = bᵀ·aᵀ."""
        return replace(self, a=self.b.transposed(), b=self.a.transposed(), y=self.y.transposed())

    def merged(self) -> Product:
        """The same with a batch of three dimensions, as kernels walk it, of which one will mostly do."""
        sides = (self.a, self.b, self.y)
        walk = as_rows((*self.batch, 1), *((*side.batch_strides, 0) for side in sides))
        a, b, y = (replace(side, batch_strides=strides) for side, strides in zip(sides, walk.strides, strict=True))
        return replace(self, a=a, b=b, y=y, batch=walk.sizes, summed=0)

    def described(self) -> tuple[tuple[Operand, bool], tuple[Operand, bool]] | None:
        """a and bᵀ as descriptors walk them, and whether along depth; None where a layout does not allow it."""
        if self.nested or self.depth == 0:
            return None
        a = self.a.described(self.matrices, self.a.batch_strides[0])
        b = self.b.transposed().described(self.matrices, self.b.batch_strides[0])
        return None if a is None or b is None else (a, b)


def plan_product(plan: Plan, product: Product) -> None:
    if product.y.strides[0] == 1 and product.y.strides[1] != 1 and product.finish == Finish():
        product = product.transposed()  # so that neighbours in a row of the result are neighbours in memory
    merged = product.merged()
    config = _chosen(plan, merged)
    partials = prod(product.batch[: product.summed]) * config.shares
    if partials == 1:
        _plan_tiles(plan, merged, config)
        return
    kept = product.batch[product.summed :]
    rows, columns = product.y.rows, product.y.columns
    sums = plan.empty((partials * prod(kept), rows, columns), _sum_dtype(product))
    size = rows * columns
    strides = (merged.batch[1] * merged.batch[2] * size, merged.batch[2] * size, size)
    _plan_tiles(plan, replace(merged, y=Matrix(sums, rows, columns, (columns, 1), strides), finish=Finish()), config)
    _plan_sum(plan, product, sums, partials, kept)


def _sum_dtype(product: Product) -> torch.dtype:
    return torch.float64 if product.a.operand.dtype == torch.float64 else torch.float32


def _chosen(plan: Plan, product: Product) -> ProductConfig:
    a, b = product.a, product.b
    describable = product.described() is not None
    splittable = a.operand.dtype == torch.float32 and not product.nested and product.depth > 0
    look = Look(
        rows=bucket(a.rows),
        columns=bucket(b.columns),
        depth=bucket(product.depth),
        matrices=bucket(product.matrices),
        dtype=a.operand.dtype,
        tf32=product.tf32,
        describable=describable,
        splittable=splittable,
        target=plan.architecture.target,
        multiprocessors=plan.multiprocessors,
        interpreted=plan.device.type == "cpu",
        ahead=_can_be_split_ahead(plan, product),
        walkable=_can_be_walked(plan, product),
        overlappable=_can_be_overlapped(plan, product),
    )
    sizes = (look.rows, look.columns, look.depth, look.matrices)
    config = plan.choose(product_config(look), *sizes, look.dtype, *(("tf32",) if look.tf32 else ()))
    config = config.filling(product.tiles, product.depth, plan.multiprocessors)
    return config.consistent(
        describable=describable, exact=look.exact, splittable=splittable, ahead=look.ahead, walkable=look.walkable,
        overlappable=look.overlappable, matrices=product.matrices, activation=product.finish.activation,
    )  # fmt: skip


def _can_be_split_ahead(plan: Plan, product: Product) -> bool:
    """Whether the kernel that splits one step ahead knows how: the interpreter does not know Gluon."""
    if not runs_on_hopper(plan):
        return False
    described = product.described()
    if described is None or product.a.operand.dtype != torch.float32 or product.tf32:
        return False
    finish = product.finish
    plain = finish.activation in ("", "relu") and finish.scale_a is None and finish.scale_b is None and finish.z is None
    # Offsets within a tile are counted in 32 bits: a step of up to 128 rows.
    return plain and all(seen.shape[-1] % int(UNIT.value) == 0 and seen.strides[-2] < 1 << 24 for seen, _ in described)


def _can_be_walked(plan: Plan, product: Product) -> bool:
    """Whether the kernel that holds planes in registers knows how: of one matrix, with results along rows, in
    whole units. Of two transposed operands it has not registers enough."""
    if product.matrices != 1 or not _can_be_split_ahead(plan, product):
        return False
    y, bias, described = product.y, product.finish.bias, product.described()
    whole_units = y.columns % int(UNIT.value) == 0 and y.strides[0] % int(UNIT.value) == 0
    along = y.strides[1] == 1 and y.operand.dtype == torch.float32 and (bias is None or bias.strides == (1,))
    return whole_units and along and described is not None and (described[0][1] or not described[1][1])


def _can_be_overlapped(plan: Plan, product: Product) -> bool:
    """Whether the kernel that stores a tile while the next is multiplied knows how: nothing else is done to its
    sums."""
    described, y = product.described(), product.y.described(1, 0)
    if described is None or y is None or product.matrices != 1 or product.finish != Finish():
        return False
    return takes_product(plan, [described], y)


def _plan_tiles(plan: Plan, product: Product, config: ProductConfig) -> None:
    """Every tile of every matrix and share, into y, where shares lie one after the other."""
    if config.overlapped:
        _plan_overlapped(plan, product)
        return
    depth, plane_columns = product.depth, 0  # planes have several times as many columns as the depth of the product
    if config.planes == "stored":
        product, plane_columns = _with_planes(plan, product, config)
    steps = triton.cdiv(triton.cdiv(depth, config.BLOCK_K), config.shares)
    tiles = product.tiles(config.BLOCK_M, config.BLOCK_N) * config.shares
    shared: dict[str, object] = {
        "n_rows": product.y.rows, "n_columns": product.y.columns, "depth": depth, "n_matrices": product.matrices,
        "steps_per_share": steps, "plane_columns": plane_columns,
        "COLUMNS_MULTIPLE": multiple(product.y.columns, product.y.strides[1], product.b.strides[1]),
        "PRECISION": product_precision(plan, product.a.operand.dtype, product.tf32), **product.finish.arguments(),
    }  # fmt: skip
    if config.descriptors:
        _plan_descriptors(plan, product, config, tiles, shared)
    elif config.planes == "ahead":
        _plan_split_ahead(plan, product, config, tiles, shared)
    elif config.planes == "registers":
        _plan_walked(plan, product, config, shared)
    else:
        _plan_pointers(plan, product, config, tiles, depth, shared)


def _with_planes(plan: Plan, product: Product, config: ProductConfig) -> tuple[Product, int]:
    """The product of the operands' planes."""
    counts = [1 if side.is_shared else product.matrices for side in (product.a, product.b)]
    a, b, plane_columns = plan_planes(plan, product.a, product.b, counts, config.BLOCK_K)
    return replace(product, a=a, b=b), plane_columns


def _plan_pointers(
    plan: Plan, product: Product, config: ProductConfig, tiles: int, depth: int, shared: dict[str, object]
) -> None:
    a, b, y = product.a, product.b, product.y
    plan.launch(
        matmul_pointers_kernel, (tiles,), config, **shared, PLANES=config.planes,
        a_ptr=a.operand, b_ptr=b.operand, y_ptr=y.operand, z_ptr=product.finish.z,
        a_strides=(*a.batch_strides, *a.strides), b_strides=(*b.batch_strides, *b.strides),
        y_strides=(*y.batch_strides, *y.strides), inner_sizes=product.batch[1:],
        share_stride=product.matrices * y.rows * y.columns, ROWS_MULTIPLE=multiple(y.rows, a.strides[0]),
        DEPTH_MULTIPLE=multiple(depth, a.strides[1], b.strides[0]),
        COMPUTE=compute_dtype(a.operand.dtype),
    )  # fmt: skip


def _plan_split_ahead(
    plan: Plan, product: Product, config: ProductConfig, tiles: int, shared: dict[str, object]
) -> None:
    described = product.described()
    assert described is not None, "a config is consistent with its operands"
    (a, a_along), (b, b_along) = described
    y = product.y
    known = {name: value for name, value in shared.items() if name in matmul_hopper_exact_kernel.arg_names}
    plan.launch(
        matmul_hopper_exact_kernel, (tiles,), config, **known, a_ptr=a, b_ptr=b, y_ptr=y.operand,
        a_batch_stride=product.a.batch_strides[0], b_batch_stride=product.b.batch_strides[0],
        a_stride=a.strides[-2], b_stride=b.strides[-2], y_batch_stride=y.batch_strides[0],
        y_row_stride=y.strides[0], y_column_stride=y.strides[1], A_ALONG=a_along, B_ALONG=b_along,
    )  # fmt: skip


def _plan_walked(plan: Plan, product: Product, config: ProductConfig, shared: dict[str, object]) -> None:
    described = product.described()
    assert described is not None, "a config is consistent with its operands"
    (a, a_along), (b, b_along) = described
    y = product.y
    block = (int(ROWS.value), config.BLOCK_K)
    blocks, column_tiles = triton.cdiv(y.rows, config.BLOCK_M), triton.cdiv(y.columns, config.BLOCK_N)
    walkers = min(blocks, max(plan.multiprocessors // (column_tiles * config.shares), 1))
    held = triton.cdiv(triton.cdiv(product.depth, config.BLOCK_K), config.shares) <= config.B_SLOTS
    known = {name: value for name, value in shared.items() if name in matmul_hopper_rows_kernel.arg_names}
    plan.launch(
        matmul_hopper_rows_kernel, (column_tiles * walkers * config.shares,), config, **known,
        a=a.gluon_descriptor(block if a_along else block[::-1]), a_ptr=a, b_ptr=b, y_ptr=y.operand,
        a_stride=a.strides[-2], b_stride=b.strides[-2], y_row_stride=y.strides[0], n_walkers=walkers,
        A_ALONG=a_along, B_ALONG=b_along, HELD=held,
    )  # fmt: skip


def _plan_overlapped(plan: Plan, product: Product) -> None:
    described, y = product.described(), product.y.described(1, 0)
    assert described is not None, "a config is consistent with its operands"
    assert y is not None, "as above"
    plan_hopper_product(plan, [described], y[0])


def _plan_descriptors(
    plan: Plan, product: Product, config: ProductConfig, tiles: int, shared: dict[str, object]
) -> None:
    described = product.described()
    assert described is not None, "a config is consistent with its operands"
    (a, a_along), (b, b_along) = described
    y, outer = product.y, product.matrices * config.shares
    programs = min(tiles, plan.multiprocessors * config.programs_per_multiprocessor or tiles)
    stored = config.planes == "stored"
    in_halves = stored and config.HALVES
    plan.launch(
        matmul_descriptors_kernel, (programs,), config, **shared, PLANES=stored, n_tiles=tiles,
        a=_descriptor(a, config, config.BLOCK_M, config.BLOCK_K, a_along),
        b=_descriptor(b, config, config.BLOCK_N // 2 if in_halves else config.BLOCK_N, config.BLOCK_K, b_along),
        **_descriptors_of_results(y, product.finish.z, outer, config),
        a_stride=a.strides[-2], b_stride=b.strides[-2], y_strides=(y.batch_strides[0], *y.strides),
        A_ALONG_DEPTH=a_along, B_ALONG_DEPTH=b_along, A_BATCHED=len(a.shape) == 3, B_BATCHED=len(b.shape) == 3,
        Y_BATCHED=outer != 1, SHARED=config.shares != 1,
    )  # fmt: skip


def _descriptors_of_results(y: Matrix, z: Operand | None, outer: int, config: ProductConfig) -> dict[str, object]:
    """y and z as descriptors, or as pointers where their layout does not allow it."""
    seen, along = y.described(outer, y.batch_strides[0]) or (y.operand, False)
    if not along:
        return {"y": None, "z": None, "y_ptr": y.operand, "z_ptr": z}
    columns = config.BLOCK_N // 2 if config.HALVES else config.BLOCK_N
    results = [seen, None if z is None else z.seen_as(seen.shape, seen.strides)]
    made = [one and _descriptor(one, config, config.BLOCK_M, columns) for one in results]
    return {"y": made[0], "z": made[1], "y_ptr": None, "z_ptr": None}


def _descriptor(operand: Operand, config: ProductConfig, rows: int, columns: int, along: bool = True) -> object:
    """A descriptor of blocks of this size; where the kernel makes descriptors itself, the operand."""
    if config.WARP_SPECIALIZE:
        return operand
    block = (rows, columns) if along else (columns, rows)
    return operand.descriptor((*(1,) * (len(operand.shape) - 2), *block))


def _plan_sum(plan: Plan, product: Product, sums: Operand, partials: int, kept: tuple[int, ...]) -> None:
    y = product.y
    walk = as_rows((*kept, 1), (*y.batch_strides[product.summed :], 0))
    config = sum_config(y.columns, partials)
    tiles = triton.cdiv(y.rows, config.ROWS) * triton.cdiv(y.columns, config.COLUMNS)
    plan.launch(
        sum_shares_kernel, (tiles * prod(kept),), config,
        partials_ptr=sums, y_ptr=y.operand, z_ptr=product.finish.z,
        y_strides=(*walk.strides[0], *y.strides), inner_sizes=walk.sizes[1:],
        n_partials=partials, partial_stride=prod(kept) * y.rows * y.columns, n_rows=y.rows, n_columns=y.columns,
        COLUMNS_MULTIPLE=multiple(y.columns, 1), COMPUTE=compute_dtype(product.a.operand.dtype),
        **product.finish.arguments(),
    )  # fmt: skip
