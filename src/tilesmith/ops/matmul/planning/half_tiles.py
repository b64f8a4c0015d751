"""The form for half precision on Hopper with tiles of many sizes (`hopper/tiles.py`), and the choice of its tiles.

A predicted time chooses the tile, its orientation and split-K, and whether this form is faster than the others. It is
fitted to 184 products of whole 16-byte units on an H200, each with up to 20 tiles: the tiles chosen take 3.5 % longer
than the fastest in the geometric mean, 1.7 times in the worst case. This form then computes 70 of them. All 184 are at
0.92 of cuBLAS's speed, 0.87 without this form, 0.94 if every choice were right
(`benchmarks/tuning/tiles_of_many_sizes-h200.json`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tilesmith.ops.device.hopper import ProducerConfig, runs_on_hopper
from tilesmith.ops.device.step_times import step_clocks, store_clocks
from tilesmith.ops.matmul.hopper.tiles import DEPTH, GROUPS, matmul_hopper_tiles_kernel
from tilesmith.ops.matmul.matrices import in_batch, multiple
from tilesmith.ops.matmul.planning.form import ProductForm
from tilesmith.ops.matmul.planning.problem import Epilogue, Problem, Product
from tilesmith.ops.matmul.planning.tile_times import OVERLAPPED
from tilesmith.ops.runtime.config import cdiv
from tilesmith.ops.runtime.plan import Plan

SHARED_BYTES = 226 << 10  # of a program, beside the mbarriers
MOST_STAGES, MOST_SPLITS = 8, 32
LEAST_DEPTH = 256
UNIT = 8  # elements of 16 bytes; TMA loads rows that are no multiple of two units one by one

TILES = (
    (128, 16, 0), (128, 32, 0), (128, 64, 0), (128, 64, 32), (128, 128, 0), (128, 128, 32), (128, 128, 64),
    (128, 256, 0), (256, 64, 0), (256, 64, 32), (256, 128, 0),
)  # fmt: skip
"""Rows, columns, and columns of the second block. None spills, and shared memory holds each with two stages or more."""

FULL = 132  # tiles that leave no multiprocessor idle
CLOCKS = 1755.0  # in a µs
START = 1.9  # µs
MEMORY_BYTES = 3.9e6  # in a µs
LOADED_BYTES = 200e6  # in a µs
SUM_START, SUM_BYTES = 2.3, 4.5e6  # the kernel that adds partial sums
MEASURED = 0.9  # of what `tile_times.py` predicts for the other forms


@dataclass(frozen=True)
class HalfTilesConfig(ProducerConfig):
    """Tiles of ROWS × (COLUMNS + MORE), a ring of STAGES steps, and TOGETHER tiles below each other that run together.

    - TURNED: the kernel computes yᵀ, so a tile has ROWS columns of y.
    - `split_k`: so many programs share the depth of a tile.
    """

    form: str = "half_tiles"
    ROWS: int = 128
    COLUMNS: int = 128
    MORE: int = 0
    STAGES: int = 4
    TOGETHER: int = 8
    TURNED: bool = False
    split_k: int = 1

    @property
    def width(self) -> int:
        return self.COLUMNS + self.MORE


class HalfTiles(ProductForm[HalfTilesConfig]):
    """Matrices in bf16 or fp16, without bias, activation or addend. A batch has its own of both operands."""

    config_type = HalfTilesConfig

    def takes(self, problem: Problem) -> bool:
        product = problem.product
        if product.described is None or product.epilogue != Epilogue() or not problem.is_half:
            return False
        operands = [side[0] for side in product.described]
        same = {operand.dtype for operand in operands} == {product.y.operand.dtype}
        batched = product.matrices == 1 or all(len(operand.shape) == 3 for operand in operands)
        return runs_on_hopper(problem.plan) and same and batched

    def suits(self, problem: Problem) -> bool:
        """The predicted times were fitted to single matrices whose results TMA can store."""
        product, times = problem.product, problem.times
        stored = product.y.described(1, 0)
        if product.matrices != 1 or product.depth < LEAST_DEPTH or stored is None or not stored[1]:
            return False
        others = [times.fastest()[0]]
        if product.tiles(OVERLAPPED.rows, OVERLAPPED.columns) > problem.multiprocessors:
            others.append(times.microseconds(OVERLAPPED))
        return _fastest(_walks(product), problem.multiprocessors)[0] < MEASURED * min(others)

    def config(self, problem: Problem) -> HalfTilesConfig:
        return _fastest(_walks(problem.product), problem.multiprocessors)[1]

    def settled(self, problem: Problem, config: HalfTilesConfig) -> HalfTilesConfig:
        steps = cdiv(problem.product.depth, int(DEPTH.value))
        per_split = cdiv(steps, max(config.split_k, 1))
        config = replace(config, num_warps=4, split_k=cdiv(steps, per_split))
        return replace(config, STAGES=min(config.STAGES, _stages(config.ROWS, config.width, config.split_k)))

    def split_k(self, config: HalfTilesConfig) -> int:
        return config.split_k

    def plan(self, plan: Plan, product: Product, config: HalfTilesConfig) -> None:
        walked = product.transposed() if config.TURNED else product
        (a, a_along), (b, b_along) = walked.sides()
        rows, half, depth = config.ROWS, config.ROWS // int(GROUPS.value), int(DEPTH.value)
        blocks = [(1, columns, depth) if b_along else (1, depth, columns) for columns in (config.COLUMNS, config.MORE)]
        outer = product.matrices * config.split_k
        steps = cdiv(product.depth, depth)
        n_tiles = walked.tiles(rows, config.width) * config.split_k
        y = product.y
        stored = y.described(outer, y.batch_strides[0]) if y.operand.dtype == a.dtype else None
        results: list[object] = [None, None]
        if stored is not None and stored[1]:
            results = [
                in_batch(stored[0]).gluon_descriptor((1, columns, half) if config.TURNED else (1, half, columns))
                if columns
                else None
                for columns in (config.COLUMNS, config.MORE)
            ]
        a_block = (1, rows, depth) if a_along else (1, depth, rows)
        plan.launch(
            matmul_hopper_tiles_kernel, (min(n_tiles, config.resident * plan.multiprocessors),), config,
            a=in_batch(a).gluon_descriptor(a_block), b=in_batch(b).gluon_descriptor(blocks[0]),
            b_more=in_batch(b).gluon_descriptor(blocks[1]) if config.MORE else None,
            y=results[0], y_more=results[1], y_ptr=None if results[0] else y.operand,
            y_strides=(y.batch_strides[0], *walked.y.strides), n_matrices=product.matrices, n_outer=outer,
            n_rows=walked.y.rows, n_columns=walked.y.columns, n_steps=steps,
            steps_per_split=cdiv(steps, config.split_k), A_ALONG=a_along, B_ALONG=b_along,
            UNIT=multiple(walked.y.columns, walked.y.strides[1]), REGISTERS=config.consumer_registers,
        )  # fmt: skip


class Walk(NamedTuple):
    """One orientation of a product: its sizes, and whether rows of each operand in memory are narrow for TMA.

    An operand whose depth is contiguous has a row in memory for each row of its block, else for each step of depth.
    """

    turned: bool
    rows: int
    columns: int
    depth: int
    a_along: bool
    b_along: bool
    a_narrow: bool
    b_narrow: bool


def _walks(product: Product) -> tuple[Walk, Walk]:
    """Return the product as it is, and as yᵀ = bᵀ·aᵀ."""
    (a, a_along), (b, b_along) = product.sides()
    rows, columns = product.y.rows, product.y.columns
    a_narrow, b_narrow = (one.strides[-2] % (2 * UNIT) != 0 for one in (a, b))
    return (
        Walk(False, rows, columns, product.depth, a_along, b_along, a_narrow, b_narrow),
        Walk(True, columns, rows, product.depth, b_along, a_along, b_narrow, a_narrow),
    )


@lru_cache(maxsize=4096)
def _fastest(walks: tuple[Walk, ...], multiprocessors: int) -> tuple[float, HalfTilesConfig]:
    """Return the shortest predicted time in µs, and its config."""
    return min(
        ((_microseconds(walk, config, multiprocessors), config) for walk in walks for config in _candidates(walk)),
        key=lambda one: one[0],
    )


def _candidates(walk: Walk) -> Iterator[HalfTilesConfig]:
    """Yield all tiles that are not mostly empty, with every split-K that leaves each program 4 steps."""
    most = min(MOST_SPLITS, cdiv(walk.depth, int(DEPTH.value)) // 4)
    for rows, columns, more in TILES:
        if rows > max(128, walk.rows + 127) or columns + more > max(16, 2 * walk.columns):
            continue
        tiles = cdiv(walk.rows, rows) * cdiv(walk.columns, columns + more)
        for split_k in range(1, max(most, 1) + 1 if tiles < FULL else 2):
            stages = _stages(rows, columns + more, split_k)
            yield HalfTilesConfig(
                ROWS=rows, COLUMNS=columns, MORE=more, STAGES=stages, TURNED=walk.turned, split_k=split_k
            )


def _microseconds(walk: Walk, config: HalfTilesConfig, multiprocessors: int) -> float:
    """Return the predicted time.

    The multiprocessors and the memory work at the same time; where both take long, a little more than the longer.
    Loads from the L2 cache delay all programs a little.
    """
    depth, split_k = int(DEPTH.value), config.split_k
    steps = cdiv(cdiv(walk.depth, depth), split_k)
    programs = cdiv(walk.rows, config.ROWS) * cdiv(walk.columns, config.width) * split_k
    narrow_rows = 0
    for narrow, along, size in (
        (walk.a_narrow, walk.a_along, config.ROWS),
        (walk.b_narrow, walk.b_along, config.width),
    ):
        narrow_rows += (size if along else depth) if narrow else 0
    step = step_clocks(config.ROWS, config.width, depth, config.STAGES, narrow_rows)
    stored = config.ROWS * config.width * (2 if split_k == 1 else 4)
    computing = cdiv(programs, multiprocessors) * (steps * step + store_clocks(stored)) / CLOCKS
    results = walk.rows * walk.columns
    moving = 2 * ((walk.rows + walk.columns) * walk.depth + results) / MEMORY_BYTES
    loads = 2 * programs * steps * (config.ROWS + config.width) * depth / LOADED_BYTES
    time: float = START + (computing**3 + moving**3) ** (1 / 3) + loads
    return time if split_k == 1 else time + SUM_START + results * (6 * split_k + 2) / SUM_BYTES


def _stages(rows: int, columns: int, split_k: int) -> int:
    """Return how many steps fit in shared memory beside the results. Partial sums go straight to memory."""
    results = 2 * rows * columns if split_k == 1 else 0
    return max(min((SHARED_BYTES - results) // (2 * (rows + columns) * int(DEPTH.value)), MOST_STAGES), 2)
