"""Forms by TMA: persistent programs on Hopper whose operands are loaded by TMA descriptors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from tilesmith.ops.matmul.kernels.split_bf16x3 import plan_split
from tilesmith.ops.matmul.kernels.tma import matmul_descriptors_kernel
from tilesmith.ops.matmul.matrices import Matrix
from tilesmith.ops.matmul.planning.exactness import pays_to_split_in_memory
from tilesmith.ops.matmul.planning.form import TileConfig, TiledForm, shared_arguments, tile_count
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class TmaConfig(TileConfig):
    """How the TMA kernel walks its tiles.

    - `programs_per_multiprocessor`: persistent programs, each of which takes tile after tile; 0 for one per tile.
    - GROUP: rows of tiles that run together, so that they share operands in the L2 cache.
    - FLATTEN, WARP_SPECIALIZE: options of the kernel's loop over tiles.
    - HALVES: a tile is stored in two halves, which takes half the shared memory.
    - IMPRECISE: how many float8 products a tensor core adds in its own, shorter format; 0 for all of them.
    """

    form: str = "tma"
    GROUP: int = 8
    FLATTEN: bool = False
    WARP_SPECIALIZE: bool = False
    HALVES: bool = False
    IMPRECISE: int = 0
    programs_per_multiprocessor: int = 0

    @property
    def programs_to_fill(self) -> int:
        return max(self.programs_per_multiprocessor, 1)


@dataclass(frozen=True)
class StoredByTmaConfig(TmaConfig):
    form: str = "bf16x3_stored_tma"


TmaType = TypeVar("TmaType", bound=TmaConfig)


class _ByTma(TiledForm[TmaType], Generic[TmaType]):
    """A form that launches the TMA kernel. `stored`: whether both operands are split into bf16x3 in memory."""

    stored: ClassVar[bool] = False

    def settled(self, problem: Problem, config: TmaType) -> TmaType:
        product = problem.product
        # Triton's compiler fails or aborts on other combinations. gelu makes warp specialisation spill registers.
        specialized = config.WARP_SPECIALIZE and config.num_warps == 4 and config.BLOCK_M >= 128 and not self.stored
        specialized = specialized and product.matrices * config.split_k == 1 and product.epilogue.activation != "gelu"
        return replace(
            config,
            WARP_SPECIALIZE=specialized,
            FLATTEN=config.FLATTEN and not specialized,
            HALVES=config.HALVES and not specialized,
            IMPRECISE=min(config.IMPRECISE, config.BLOCK_K),
        )

    def config(self, problem: Problem) -> TmaType:
        if problem.is_half:
            _, tile, split_k = problem.times.fastest()
            chosen = self.config_type(
                num_warps=tile.warps, num_stages=tile.stages, BLOCK_M=tile.rows, BLOCK_N=tile.columns,
                BLOCK_K=problem.times.step(tile), split_k=split_k,
            )  # fmt: skip
            if tile.persistent:  # half of the tile waits in shared memory to be stored
                return replace(chosen, HALVES=True, FLATTEN=True, programs_per_multiprocessor=1)
            return chosen
        element_bytes = 2 if self.stored else problem.dtype.itemsize
        block_k = 128 // element_bytes  # 128 bytes: the widest row that TMA swizzles over all banks
        shared = self.config_type(BLOCK_K=block_k)
        if problem.rows <= 64:
            return _few_rows(problem, shared, element_bytes)
        busy = 0.9 * problem.multiprocessors
        if problem.tiles(128, 256) >= busy:
            # The largest tile whose sums fit in registers: each loaded byte is used most often. Half of the tile waits
            # in shared memory to be stored. Three stages and four are within 1 % of each other on an H200 at 4096 (778
            # and 784 TFLOP/s) and 8192 (719 and 722); three are ahead at 2048 (682 and 678).
            return replace(
                shared, num_warps=8, num_stages=3, BLOCK_N=256, HALVES=True, FLATTEN=True, programs_per_multiprocessor=1
            )
        if problem.tiles(128, 128) >= busy:
            return replace(shared, num_warps=8, num_stages=4)
        if problem.tiles(64, 128) >= busy:
            # Twice the depth at a time halves the waiting: 355 TFLOP/s at 1024 on an H200, 332 with the single depth,
            # and 324 with 128×64. bf16x3 is six times as deep already: 75 TFLOP/s with the single depth.
            return replace(
                shared, num_warps=4, num_stages=4, BLOCK_M=64, BLOCK_K=block_k if self.stored else 2 * block_k
            )
        block_n = min(128, max(problem.columns, 16))
        depth = problem.depth * (6 if self.stored else 1)
        split_k = problem.split_k(problem.tiles(128, block_n), depth // 1024)
        return replace(shared, num_warps=8, num_stages=4, BLOCK_N=block_n, split_k=split_k)

    def plan(self, plan: Plan, product: Product, config: TmaType) -> None:
        self.launch(plan, product, config, product.depth, 0)

    def launch(self, plan: Plan, product: Product, config: TmaType, depth: int, part_columns: int) -> None:
        """Put the TMA kernel on the plan.

        Operands that are split in memory have several times as many columns as the product has depth.
        """
        (a, a_along), (b, b_along) = product.sides()
        y, outer = product.y, product.matrices * config.split_k
        tiles = tile_count(product, config)
        programs = min(tiles, plan.multiprocessors * config.programs_per_multiprocessor or tiles)
        b_columns = config.BLOCK_N // 2 if self.stored and config.HALVES else config.BLOCK_N
        plan.launch(
            matmul_descriptors_kernel, (programs,), config, **shared_arguments(plan, product, config, depth),
            part_columns=part_columns, BF16X3=self.stored, n_tiles=tiles,
            a=_descriptor(a, config, config.BLOCK_M, config.BLOCK_K, a_along),
            b=_descriptor(b, config, b_columns, config.BLOCK_K, b_along),
            **_result_descriptors(y, product.epilogue.z, outer, config),
            a_stride=a.strides[-2], b_stride=b.strides[-2], y_strides=(y.batch_strides[0], *y.strides),
            A_ALONG_DEPTH=a_along, B_ALONG_DEPTH=b_along, A_BATCHED=len(a.shape) == 3, B_BATCHED=len(b.shape) == 3,
            Y_BATCHED=outer != 1, SPLIT_K=config.split_k != 1,
        )  # fmt: skip


class Tma(_ByTma[TmaConfig]):
    """Half precision, float8 and tf32 on Hopper."""

    config_type = TmaConfig

    def takes(self, problem: Problem) -> bool:
        return problem.is_describable

    def suits(self, problem: Problem) -> bool:
        return problem.on_hopper and (problem.dtype.itemsize < 4 or problem.tf32)


class StoredByTma(_ByTma[StoredByTmaConfig]):
    """Exact float32 on Hopper: one launch splits both operands into bf16x3 in memory."""

    config_type = StoredByTmaConfig
    stored = True

    def takes(self, problem: Problem) -> bool:
        return problem.is_exact and problem.is_splittable

    def suits(self, problem: Problem) -> bool:
        return problem.on_hopper and not problem.interpreted and pays_to_split_in_memory(problem)

    def plan(self, plan: Plan, product: Product, config: StoredByTmaConfig) -> None:
        a, b, part_columns = plan_split(plan, product.a, product.b, product.matrices, config.BLOCK_K)
        self.launch(plan, replace(product, a=a, b=b), config, product.depth, part_columns)


def _few_rows(problem: Problem, shared: TmaType, element_bytes: int) -> TmaType:
    """Return tiles for up to 64 rows. Reading b dominates, so the pipeline must keep many bytes in flight.

    Blocks have up to 16 KiB, and there are about two programs for each multiprocessor. Three stages are enough:
    16×8192×8192 took 34.5 µs on an H200, 39.9 with six. The smallest tile takes blocks twice as deep, 35.0 µs: with
    Triton 3.9 it spills otherwise.
    """
    block_m = 16 if problem.rows <= 16 else 64
    block_n = min(max(bucket(problem.columns * problem.matrices // (2 * problem.multiprocessors)), 32), 128)
    block_bytes = 32768 if block_m < block_n <= 32 else 16384
    block_k = block_bytes // max(block_m, block_n) // element_bytes
    block_k = block_k if problem.depth >= block_k else shared.BLOCK_K
    split_k = problem.split_k(problem.tiles(block_m, block_n), problem.depth // (4 * block_k))
    return replace(
        shared, num_warps=4, num_stages=3, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, split_k=split_k
    )


def _result_descriptors(y: Matrix, z: Operand | None, outer: int, config: TmaConfig) -> dict[str, object]:
    """Return y and z as descriptors, or as pointers where TMA cannot walk them."""
    seen, along = y.described(outer, y.batch_strides[0]) or (y.operand, False)
    if not along:
        return {"y": None, "z": None, "y_ptr": y.operand, "z_ptr": z}
    columns = config.BLOCK_N // 2 if config.HALVES else config.BLOCK_N
    results = [seen, None if z is None else z.seen_as(seen.shape, seen.strides)]
    made = [one and _descriptor(one, config, config.BLOCK_M, columns) for one in results]
    return {"y": made[0], "z": made[1], "y_ptr": None, "z_ptr": None}


def _descriptor(operand: Operand, config: TmaConfig, rows: int, columns: int, along: bool = True) -> object:
    """Return a descriptor of blocks of this size. A warp-specialised kernel takes the operand and makes its own."""
    if config.WARP_SPECIALIZE:
        return operand
    block = (rows, columns) if along else (columns, rows)
    return operand.descriptor((*(1,) * (len(operand.shape) - 2), *block))
