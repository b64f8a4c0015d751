"""Forms by plain pointers: any strides, any GPU. bf16x3 is split in each tile, or in memory beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import torch

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.kernels.pointers import matmul_pointers_kernel
from tilesmith.ops.matmul.kernels.split_bf16x3 import plan_split
from tilesmith.ops.matmul.matrices import multiple
from tilesmith.ops.matmul.planning.exactness import pays_to_split_in_memory, shared_memory_kernel_takes
from tilesmith.ops.matmul.planning.form import TileConfig, TiledForm, shared_arguments, tile_count
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime.plan import Plan

SHALLOW_SINGLE, SHALLOW_HALF = 16, 8  # depths up to which tensor cores gain nothing: storing the result takes longer
FEW = 32  # rows or columns up to which copying an operand for TMA takes longer than loading it by pointers


@dataclass(frozen=True)
class PointersConfig(TileConfig):
    """GROUP: rows of tiles that run together, so that they share operands in the L2 cache."""

    form: str = "pointers"
    GROUP: int = 8


@dataclass(frozen=True)
class OuterConfig(PointersConfig):
    form: str = "outer"
    BLOCK_K: int = 16  # not used: the kernel takes one step of depth at a time


@dataclass(frozen=True)
class InTileConfig(PointersConfig):
    """`programs_per_multiprocessor`: how many programs `split_k=0` aims at; 0 for one."""

    form: str = "bf16x3_in_tile"
    programs_per_multiprocessor: int = 0

    @property
    def programs_to_fill(self) -> int:
        return max(self.programs_per_multiprocessor, 1)


@dataclass(frozen=True)
class StoredByPointersConfig(PointersConfig):
    form: str = "bf16x3_stored_pointers"


PointersType = TypeVar("PointersType", bound=PointersConfig)


class _ByPointers(TiledForm[PointersType], Generic[PointersType]):
    """A form that launches the pointer kernel. `split`: where that kernel finds bf16x3. `outer`: no tensor cores."""

    split: ClassVar[str] = ""
    outer: ClassVar[bool] = False

    def plan(self, plan: Plan, product: Product, config: PointersType) -> None:
        self.launch(plan, product, config, product.depth, 0)

    def launch(self, plan: Plan, product: Product, config: PointersType, depth: int, part_columns: int) -> None:
        """Put the pointer kernel on the plan.

        Operands that are split in memory have several times as many columns as the product has depth.
        """
        a, b, y = product.a, product.b, product.y
        plan.launch(
            matmul_pointers_kernel, (tile_count(product, config),), config,
            **shared_arguments(plan, product, config, depth), part_columns=part_columns, BF16X3=self.split,
            OUTER=self.outer, a_ptr=a.operand, b_ptr=b.operand, y_ptr=y.operand, z_ptr=product.epilogue.z,
            a_strides=(*a.batch_strides, *a.strides), b_strides=(*b.batch_strides, *b.strides),
            y_strides=(*y.batch_strides, *y.strides), inner_sizes=product.batch[1:],
            split_stride=product.matrices * y.rows * y.columns,
            ROWS_MULTIPLE=1 if self.outer else multiple(y.rows, a.strides[0]),
            DEPTH_MULTIPLE=1 if self.outer else multiple(depth, a.strides[1], b.strides[0]),
            COMPUTE=compute_dtype(a.operand.dtype),
        )  # fmt: skip


class Outer(_ByPointers[OuterConfig]):
    """Products of little depth, as sums of outer products: the gradient of a weight that few rows multiplied.

    Exact float32 is rounded once for each step of depth, as PyTorch does; three bf16 products round more often.
    """

    config_type = OuterConfig
    outer = True

    def takes(self, problem: Problem) -> bool:
        return True

    def suits(self, problem: Problem) -> bool:
        return is_shallow(problem)

    def config(self, problem: Problem) -> OuterConfig:
        """Two shapes of tiles only: batches of many sizes share their compiled code."""
        is_narrow = problem.columns <= 16
        return OuterConfig(num_warps=4, BLOCK_M=256 if is_narrow else 32, BLOCK_N=16 if is_narrow else 128)

    def settled(self, problem: Problem, config: OuterConfig) -> OuterConfig:
        return replace(config, split_k=1)  # every program walks the whole depth


def is_shallow(problem: Problem) -> bool:
    """Whether the depth is so small that tensor cores gain nothing."""
    return 0 < problem.product.depth <= (SHALLOW_HALF if problem.is_half else SHALLOW_SINGLE)


class Pointers(_ByPointers[PointersConfig]):
    """Every problem, on every GPU. In the interpreter also exact float32, which the interpreter multiplies exactly."""

    config_type = PointersConfig

    def takes(self, problem: Problem) -> bool:
        return True

    def suits(self, problem: Problem) -> bool:
        return True

    def config(self, problem: Problem) -> PointersConfig:
        if problem.on_hopper and problem.is_half and min(problem.rows, problem.columns) <= FEW:
            # On an H200 in fp16: 5×8167×486 8.6 µs, 9.5 by cuBLAS; 24124×43×11009 510 µs, 522 by cuBLAS.
            block_m, block_n, block_k = (16, 64, 128) if problem.rows <= problem.columns else (64, 32, 64)
            split_k = problem.split_k(problem.tiles(block_m, block_n) // 2, problem.depth // 256)
            return PointersConfig(
                num_warps=4, num_stages=4, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, split_k=split_k
            )
        if problem.rows <= 16:
            split_k = problem.split_k(problem.tiles(16, 64), problem.depth // 512)
            return PointersConfig(num_warps=4, num_stages=3, BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, split_k=split_k)
        if problem.dtype == torch.float64 or problem.tiles(128, 128) < problem.multiprocessors:
            split_k = problem.split_k(problem.tiles(64, 64), problem.depth // 512)
            return PointersConfig(num_warps=4, num_stages=2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, split_k=split_k)
        # The largest tile that fits in registers on Ampere and on AMD.
        return PointersConfig(num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32)


class SplitInTile(_ByPointers[InTileConfig]):
    """Exact float32: each program splits its tiles into bf16x3."""

    config_type = InTileConfig
    split = "here"

    def takes(self, problem: Problem) -> bool:
        return problem.is_exact

    def suits(self, problem: Problem) -> bool:
        return not problem.interpreted and not pays_to_split_in_memory(problem)

    def config(self, problem: Problem) -> InTileConfig:
        """A larger tile splits and stores each element less often; loads of one element each need its registers."""
        if problem.on_hopper and problem.rows <= 16 and not problem.is_describable:
            # 2×9216×8193 on an H200: 99 µs, 130 by cuBLAS, 964 with tiles of 64.
            depth = 64 if problem.depth > 32 else 32
            return InTileConfig(
                num_warps=4, num_stages=3, BLOCK_M=16, BLOCK_N=64, BLOCK_K=depth, split_k=0,
                programs_per_multiprocessor=2,
            )  # fmt: skip
        if problem.columns <= 16 and shared_memory_kernel_takes(problem):
            # 16 columns leave a warpgroup little to multiply. Four times 2048×16×2048 on an H200: 30.6 µs, 32.2 by
            # `exact_shared`, 116 with tiles of 64.
            return InTileConfig(
                num_warps=4, num_stages=3, BLOCK_M=64, BLOCK_N=16, BLOCK_K=32, split_k=0, programs_per_multiprocessor=2
            )
        fills = problem.tiles(128, 128) * max(problem.depth // 128, 1) >= problem.multiprocessors // 2
        if fills and problem.on_hopper and problem.is_describable and min(problem.rows, problem.columns) >= 128:
            return InTileConfig(num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, split_k=0)
        return InTileConfig(num_warps=8, num_stages=2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, split_k=0)


class StoredByPointers(_ByPointers[StoredByPointersConfig]):
    """Exact float32: one launch splits both operands into bf16x3 in memory."""

    config_type = StoredByPointersConfig
    split = "stored"

    def takes(self, problem: Problem) -> bool:
        return problem.is_exact and problem.is_splittable

    def suits(self, problem: Problem) -> bool:
        return not problem.interpreted and pays_to_split_in_memory(problem)

    def config(self, problem: Problem) -> StoredByPointersConfig:
        return StoredByPointersConfig(num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32)

    def plan(self, plan: Plan, product: Product, config: StoredByPointersConfig) -> None:
        a, b, part_columns = plan_split(plan, product.a, product.b, product.matrices, config.BLOCK_K)
        self.launch(plan, replace(product, a=a, b=b), config, product.depth, part_columns)
