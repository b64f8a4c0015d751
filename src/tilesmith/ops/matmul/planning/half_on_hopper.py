"""The form for half precision on Hopper whose epilogue is only to round: a tile is stored while the next one is
multiplied."""

from __future__ import annotations

from tilesmith.ops.matmul.hopper.half import HalfConfig, launch_half, takes_half
from tilesmith.ops.matmul.matrices import Side
from tilesmith.ops.matmul.planning.form import ProductForm
from tilesmith.ops.matmul.planning.problem import Epilogue, Problem, Product
from tilesmith.ops.matmul.planning.tile_times import OVERLAPPED
from tilesmith.ops.runtime.plan import Plan

LEAST_FULL = 0.45
"""The share of a tile's elements that must be results, for a batch: measured with 0.46 and more (301×301), where this
form was as fast as the others or faster."""


class Half(ProductForm[HalfConfig]):
    """Matrices in bf16 or fp16, without bias, activation or addend. A batch has its own of both operands."""

    config_type = HalfConfig

    def takes(self, problem: Problem) -> bool:
        described, y = problem.product.described, _result(problem.product)
        if described is None or y is None or problem.product.epilogue != Epilogue():
            return False
        return takes_half(problem.plan, [described], y)

    def suits(self, problem: Problem) -> bool:
        """Nothing overlaps in a single wave of tiles. The predicted times were fitted to single matrices."""
        product = problem.product
        n_tiles = product.tiles(OVERLAPPED.rows, OVERLAPPED.columns)
        if n_tiles <= problem.multiprocessors:
            return False
        if product.matrices > 1:
            results = product.matrices * product.y.rows * product.y.columns
            return results >= LEAST_FULL * n_tiles * OVERLAPPED.rows * OVERLAPPED.columns
        return problem.times.microseconds(OVERLAPPED) <= problem.times.fastest()[0]

    def config(self, problem: Problem) -> HalfConfig:
        return HalfConfig()

    def plan(self, plan: Plan, product: Product, config: HalfConfig) -> None:
        y = _result(product)
        assert y is not None, "the form takes only results that TMA can walk"
        launch_half(plan, [product.sides()], y[0], config)


def _result(product: Product) -> Side | None:
    """Return the result as TMA walks it."""
    return product.y.described(product.matrices, product.y.batch_strides[0])
