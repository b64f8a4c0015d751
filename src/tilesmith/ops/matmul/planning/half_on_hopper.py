"""The form for half precision on Hopper whose epilogue is only to round: a tile is stored while the next one is
multiplied."""

from __future__ import annotations

from tilesmith.ops.matmul.hopper.half import HalfConfig, launch_half, takes_half
from tilesmith.ops.matmul.planning.form import ProductForm
from tilesmith.ops.matmul.planning.problem import Epilogue, Problem, Product
from tilesmith.ops.matmul.planning.tile_times import OVERLAPPED
from tilesmith.ops.runtime.plan import Plan


class Half(ProductForm[HalfConfig]):
    """One matrix in bf16 or fp16, without bias, activation or addend."""

    config_type = HalfConfig

    def takes(self, problem: Problem) -> bool:
        product = problem.product
        described, y = product.described, product.y.described(1, 0)
        if described is None or y is None or product.matrices != 1 or product.epilogue != Epilogue():
            return False
        return takes_half(problem.plan, [described], y)

    def suits(self, problem: Problem) -> bool:
        """Nothing overlaps in a single wave of tiles."""
        overlaps = problem.product.tiles(OVERLAPPED.rows, OVERLAPPED.columns) > problem.multiprocessors
        return overlaps and problem.times.microseconds(OVERLAPPED) <= problem.times.fastest()[0]

    def config(self, problem: Problem) -> HalfConfig:
        return HalfConfig()

    def plan(self, plan: Plan, product: Product, config: HalfConfig) -> None:
        y = product.y.described(1, 0)
        assert y is not None, "the form takes only results that TMA can walk"
        launch_half(plan, [product.sides()], y[0], config)
