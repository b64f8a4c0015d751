"""What a form of a product has beside `takes`, `suits` and `plan` (`ops/runtime/forms.py`): a config of its own.

To add a form: subclass `ProductForm` and `TileConfig`, and put an instance into `FORMS` in `choose.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import triton

from tilesmith.ops.matmul.matrices import multiple
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.forms import Form
from tilesmith.ops.runtime.plan import Plan
from tilesmith.ops.runtime.precision import product_precision

FormConfig = TypeVar("FormConfig", bound=Config)
Tiles = TypeVar("Tiles", bound="TileConfig")


class ProductForm(Form[Problem, None], Generic[FormConfig]):
    """One kernel for a product. `plan(plan, product, config)` puts the launches of all tiles on the plan.

    With split-K, y holds the partial sums one after the other.
    """

    config_type: type[FormConfig]

    @property
    def name(self) -> str:
        """The value of the config's field `form`: a sweep chooses a form by this name."""
        name: str = self.config_type().fields()["form"]
        return name

    @abstractmethod
    def config(self, problem: Problem) -> FormConfig:
        """Return the fastest tiles for the problem."""

    def settled(self, problem: Problem, config: FormConfig) -> Config:
        """Return the config without combinations that do not compile; where no tile is possible, another form's.

        A sweep or a tuning run may ask for any combination of values.
        """
        return config

    def split_k(self, config: FormConfig) -> int:
        """Return how many programs share the depth of one tile. Each leaves a partial sum."""
        return 1


@dataclass(frozen=True)
class TileConfig(Config):
    """Tiles of BLOCK_M × BLOCK_N, BLOCK_K of depth at a time.

    `split_k`: so many programs share the depth of a tile; 0 for as many as fill the GPU.
    """

    form: str = ""
    BLOCK_M: int = 128
    BLOCK_N: int = 128
    BLOCK_K: int = 32
    split_k: int = 1

    @property
    def programs_to_fill(self) -> int:
        """How many programs per multiprocessor `split_k=0` aims at."""
        return 1


class TiledForm(ProductForm[Tiles]):
    """A form whose config has tile sizes and split-K."""

    def split_k(self, config: Tiles) -> int:
        return config.split_k


def with_split_k(config: Tiles, problem: Problem) -> Tiles:
    """Return the config with `split_k` as a number.

    Each program sums at least 128 products per element: with fewer, the partial sums take longer than they save. No
    program is empty where all others have the same number of steps.
    """
    if config.split_k:
        return config
    product = problem.product
    tiles = max(product.tiles(config.BLOCK_M, config.BLOCK_N), 1)
    wanted = max(min(problem.multiprocessors * config.programs_to_fill // tiles, product.depth // 128), 1)
    steps = max(triton.cdiv(product.depth, config.BLOCK_K), 1)
    return replace(config, split_k=triton.cdiv(steps, triton.cdiv(steps, wanted)))


def tile_count(product: Product, config: TileConfig) -> int:
    """Return how many tiles are computed, counting every split of the depth."""
    return product.tiles(config.BLOCK_M, config.BLOCK_N) * config.split_k


def steps_per_split(depth: int, config: TileConfig) -> int:
    """Return how many steps of BLOCK_K a program takes: its share of the depth."""
    steps: int = triton.cdiv(triton.cdiv(depth, config.BLOCK_K), config.split_k)
    return steps


def shared_arguments(plan: Plan, product: Product, config: TileConfig, depth: int) -> dict[str, Any]:
    """Return the arguments that the portable kernels have in common: sizes, precision, epilogue."""
    return {
        "n_rows": product.y.rows, "n_columns": product.y.columns, "depth": depth, "n_matrices": product.matrices,
        "steps_per_split": steps_per_split(depth, config),
        "COLUMNS_MULTIPLE": multiple(product.y.columns, product.y.strides[1], product.b.strides[1]),
        "PRECISION": product_precision(plan, product.a.operand.dtype, product.tf32), **product.epilogue.arguments(),
    }  # fmt: skip
