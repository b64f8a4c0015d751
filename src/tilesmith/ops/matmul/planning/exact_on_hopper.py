"""Forms for exact float32 on Hopper: warpgroups split operands into bf16x3 while the tensor cores multiply.

Times on an H200 in µs, with the sum of partial products; a is transposed where the depth is 16384. "128" and "64" are
tiles of `exact_shared`:

| rows × columns × depth | exact_registers | 128  | 64   |
|------------------------|-----------------|------|------|
| 16384 × 512 × 128      | 31.7            | 43.7 |      |
| 16384 × 128 × 128      | 12.6            | 12.2 |      |
| 16384 × 128 × 512      | 26.4            | 30.9 |      |
| 512 × 128 × 16384      | 33.9            | 37.7 | 41.0 |
| 128 × 128 × 16384      | 17.4            | 16.9 | 15.0 |
| 1024 × 4096 × 512      | 45.8            | 55.7 | 67.4 |
| 1024 × 512 × 512       | 15.8            | 15.3 | 13.6 |
| 4096 × 256 × 64        | 9.2             |      | 6.0  |
| 4096 × 64 × 256        | 10.3            |      | 11.4 |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

from tilesmith.ops.matmul.hopper.exact_registers import ROWS, matmul_hopper_rows_kernel
from tilesmith.ops.matmul.hopper.exact_shared import matmul_hopper_exact_kernel
from tilesmith.ops.matmul.matrices import multiple
from tilesmith.ops.matmul.planning.by_pointers import InTileConfig
from tilesmith.ops.matmul.planning.exactness import (
    pays_to_split_in_memory,
    register_kernel_takes,
    shared_memory_kernel_takes,
)
from tilesmith.ops.matmul.planning.form import TileConfig, TiledForm, steps_per_split, tile_count
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime.plan import Plan

ROWS_PER_WARP = 16  # a wgmma multiplies 64 rows, 16 for each of four warps


@dataclass(frozen=True)
class ExactSharedConfig(TileConfig):
    """`programs_per_multiprocessor`: how many programs `split_k=0` aims at; 0 for one."""

    form: str = "exact_shared"
    programs_per_multiprocessor: int = 0

    @property
    def programs_to_fill(self) -> int:
        return max(self.programs_per_multiprocessor, 1)


@dataclass(frozen=True)
class ExactRegistersConfig(TileConfig):
    """A_SLOTS, B_SLOTS: stages of a and of b in shared memory.

    Two warpgroups multiply 64 rows each. The default takes all shared memory: 96 KB for bf16x3 of b, 128 KB for a.
    """

    num_stages: int = 1
    form: str = "exact_registers"
    A_SLOTS: int = 8
    B_SLOTS: int = 4
    split_k: int = 0

    @property
    def all_warps(self) -> int:
        """Two warpgroups multiply and one splits b."""
        return 3 * self.num_warps


def _is_large(problem: Problem) -> bool:
    """Return whether tiles of 128 × 128 fill the GPU, with split-K, and have enough to multiply."""
    fills = problem.tiles(128, 128) * max(problem.depth // 128, 1) >= problem.multiprocessors // 2
    has_tiles = min(problem.rows, problem.columns) >= 128 and problem.tiles(128, 128) > 1 and problem.depth > 64
    results = problem.rows * problem.columns * problem.matrices
    has_few_results = results <= 1024 * 512 and results * problem.depth <= 1024 * 512 * 512
    return fills and has_tiles and not has_few_results


class ExactRegisters(TiledForm[ExactRegistersConfig]):
    """bf16x3 of a in registers: one matrix of many rows, or of a long depth."""

    config_type = ExactRegistersConfig

    def takes(self, problem: Problem) -> bool:
        return register_kernel_takes(problem)

    def suits(self, problem: Problem) -> bool:
        if pays_to_split_in_memory(problem) or problem.columns <= 32 or _is_low_and_wide(problem):
            return False
        return self._is_narrow(problem) or (_is_large(problem) and (problem.columns > 128 or problem.depth > 128))

    def _is_narrow(self, problem: Problem) -> bool:
        return problem.columns <= 64 and problem.rows >= 2048 and problem.depth > 128

    def config(self, problem: Problem) -> ExactRegistersConfig:
        if self._is_narrow(problem):
            # 64 columns make few tiles: tiles half as wide are twice as many, and the whole depth of b fits.
            return ExactRegistersConfig(BLOCK_N=32, B_SLOTS=8, split_k=1)
        # 1024×1024×512: 17.9 µs in tiles of 64 columns, 20.7 of 128.
        is_shallow = problem.tiles(128, 128) < problem.multiprocessors // 2 and problem.depth <= 512
        return ExactRegistersConfig(BLOCK_N=64) if is_shallow else ExactRegistersConfig()

    def settled(self, problem: Problem, config: ExactRegistersConfig) -> TileConfig:
        if (config.num_warps, config.BLOCK_M, config.BLOCK_K) == (4, 128, 32):
            return config
        return ExactSharedConfig(
            num_warps=max(config.BLOCK_M // ROWS_PER_WARP, 1), num_stages=config.num_stages,
            BLOCK_M=config.BLOCK_M, BLOCK_N=config.BLOCK_N, BLOCK_K=config.BLOCK_K, split_k=config.split_k,
        )  # fmt: skip

    def plan(self, plan: Plan, product: Product, config: ExactRegistersConfig) -> None:
        (a, a_along), (b, b_along) = product.sides()
        y, epilogue = product.y, product.epilogue
        block = (int(ROWS.value), config.BLOCK_K)
        row_blocks, column_tiles = triton.cdiv(y.rows, config.BLOCK_M), triton.cdiv(y.columns, config.BLOCK_N)
        walkers = min(row_blocks, max(plan.multiprocessors // (column_tiles * config.split_k), 1))
        steps = steps_per_split(product.depth, config)
        plan.launch(
            matmul_hopper_rows_kernel, (column_tiles * walkers * config.split_k,), config,
            a=a.gluon_descriptor(block if a_along else block[::-1]), a_ptr=a, b_ptr=b, y_ptr=y.operand,
            addend_ptr=epilogue.addend, bias_ptr=epilogue.bias, ACTIVATION=epilogue.activation,
            a_stride=a.strides[-2], b_stride=b.strides[-2], y_row_stride=y.strides[0], n_rows=y.rows,
            n_columns=y.columns, depth=product.depth, steps_per_split=steps, n_walkers=walkers,
            A_ALONG=a_along, B_ALONG=b_along, HELD=steps <= config.B_SLOTS,
        )  # fmt: skip


class ExactShared(TiledForm[ExactSharedConfig]):
    """bf16x3 in shared memory, one step ahead of the tensor cores: narrow and small products, and batches."""

    config_type = ExactSharedConfig

    def takes(self, problem: Problem) -> bool:
        return shared_memory_kernel_takes(problem)

    def suits(self, problem: Problem) -> bool:
        return problem.columns > 16 and not pays_to_split_in_memory(problem)

    def config(self, problem: Problem) -> ExactSharedConfig:
        """In µs on an H200, with tiles of 64 × 64 and with those chosen: four times 64×8192×512 43.3 and 32.2, 64 times
        64×32×4096 43.3 and 32.2. Four times 512×8192×64: 59.2 with tiles of 128, 51.5 with 64."""
        small = ExactSharedConfig(
            num_warps=4, num_stages=1, BLOCK_M=64, BLOCK_N=64, split_k=0, programs_per_multiprocessor=2
        )
        if problem.columns <= 32:
            return replace(small, BLOCK_N=32, programs_per_multiprocessor=4)
        if _is_low_and_wide(problem):
            return replace(small, BLOCK_N=128)
        return ExactSharedConfig(num_warps=8, num_stages=1, split_k=0) if _is_large(problem) else small

    def settled(self, problem: Problem, config: ExactSharedConfig) -> TileConfig:
        has_warpgroups = config.num_warps % 4 == 0 and ROWS_PER_WARP * config.num_warps <= config.BLOCK_M
        if has_warpgroups and config.BLOCK_K >= 16:
            return config
        return InTileConfig(
            num_warps=config.num_warps, num_stages=config.num_stages,
            BLOCK_M=config.BLOCK_M, BLOCK_N=config.BLOCK_N, BLOCK_K=config.BLOCK_K, split_k=config.split_k,
        )  # fmt: skip

    def plan(self, plan: Plan, product: Product, config: ExactSharedConfig) -> None:
        (a, a_along), (b, b_along) = product.sides()
        y, epilogue = product.y, product.epilogue.arguments()
        plan.launch(
            matmul_hopper_exact_kernel, (tile_count(product, config),), config, a_ptr=a, b_ptr=b, y_ptr=y.operand,
            **{name: epilogue[name] for name in ("addend_ptr", "bias_ptr", "bias_stride", "ACTIVATION")},
            a_batch_stride=product.a.batch_strides[0], b_batch_stride=product.b.batch_strides[0],
            a_stride=a.strides[-2], b_stride=b.strides[-2], y_batch_stride=y.batch_strides[0],
            y_row_stride=y.strides[0], y_column_stride=y.strides[1], n_rows=y.rows, n_columns=y.columns,
            depth=product.depth, n_matrices=product.matrices, steps_per_split=steps_per_split(product.depth, config),
            A_ALONG=a_along, B_ALONG=b_along,
            COLUMNS_MULTIPLE=multiple(y.columns, y.strides[1], product.b.strides[1]),
        )  # fmt: skip


def _is_low_and_wide(problem: Problem) -> bool:
    return problem.rows <= 64 and problem.columns >= 512
