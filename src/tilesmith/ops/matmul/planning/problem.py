"""One batched GEMM as the planner sees it: its operands, its epilogue, and the facts that decide which kernel runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
import triton

from tilesmith.ops.matmul.matrices import Matrix, Side
from tilesmith.ops.matmul.planning.tile_times import Times
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class Epilogue:
    """The epilogue: y = act(z) + addend, z = sums · scales + bias.

    `z` is memory for the values before the activation, where a gradient needs them. `z` and `addend` have the strides
    of the result.
    """

    bias: Operand | None = None
    activation: str = ""
    scale_a: Operand | None = None
    scale_b: Operand | None = None
    z: Operand | None = None
    addend: Operand | None = None

    def arguments(self) -> dict[str, object]:
        """Return the kernel arguments that every form with an epilogue has."""
        return {
            "bias_ptr": self.bias, "scale_a_ptr": self.scale_a, "scale_b_ptr": self.scale_b, "addend_ptr": self.addend,
            "bias_stride": _stride(self.bias), "scale_a_stride": _stride(self.scale_a),
            "scale_b_stride": _stride(self.scale_b), "ACTIVATION": self.activation,
        }  # fmt: skip


def _stride(vector: Operand | None) -> int:
    """Return the stride of a vector; 0 for a single element, which every row or column shares."""
    return vector.strides[0] if vector is not None and prod(vector.shape) > 1 else 0


@dataclass(frozen=True)
class Product:
    """A GEMM for every index of a batch; the result is summed over the first `summed` dimensions of the batch."""

    a: Matrix
    b: Matrix
    y: Matrix
    batch: tuple[int, ...]
    tf32: bool
    summed: int = 0
    epilogue: Epilogue = Epilogue()

    @property
    def depth(self) -> int:
        return self.a.columns

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    def tiles(self, block_m: int, block_n: int) -> int:
        """Return how many tiles of this size all matrices have."""
        tiles: int = triton.cdiv(self.y.rows, block_m) * triton.cdiv(self.y.columns, block_n)
        return tiles * self.matrices

    @property
    def nested(self) -> bool:
        """Whether the batch has more than one dimension that does not merge with the next."""
        return self.batch[1:] not in ((), (1, 1))

    def transposed(self) -> Product:
        """Return the same product as yᵀ = bᵀ·aᵀ."""
        return replace(self, a=self.b.transposed(), b=self.a.transposed(), y=self.y.transposed())

    def merged(self) -> Product:
        """Return the product with a batch of exactly three dimensions, as kernels index it; most need one of them."""
        sides = (self.a, self.b, self.y)
        walk = as_rows((*self.batch, 1), *((*side.batch_strides, 0) for side in sides))
        a, b, y = (replace(side, batch_strides=strides) for side, strides in zip(sides, walk.strides, strict=True))
        return replace(self, a=a, b=b, y=y, batch=walk.sizes, summed=0)

    @cached_property
    def described(self) -> tuple[Side, Side] | None:
        """a and bᵀ as TMA descriptors walk them; True beside each whose depth is contiguous. None if TMA cannot."""
        if self.nested or self.depth == 0:
            return None
        a = self.a.described(self.matrices, self.a.batch_strides[0])
        b = self.b.transposed().described(self.matrices, self.b.batch_strides[0])
        return None if a is None or b is None else (a, b)

    def sides(self) -> tuple[Side, Side]:
        """Return `described`, for forms that take only products that TMA can walk."""
        assert self.described is not None, "the form takes only operands that TMA can walk"
        return self.described


@dataclass(frozen=True)
class Problem:
    """A product on one GPU: all that the choice of a form and of its tiles depends on.

    `rows`, `columns`, `depth` and `matrices` are powers of two at or above the real sizes, so that similar sizes share
    a choice.
    """

    plan: Plan
    product: Product

    @cached_property
    def rows(self) -> int:
        return bucket(self.product.a.rows)

    @cached_property
    def columns(self) -> int:
        return bucket(self.product.b.columns)

    @cached_property
    def depth(self) -> int:
        return bucket(self.product.depth)

    @cached_property
    def matrices(self) -> int:
        return bucket(self.product.matrices)

    @property
    def dtype(self) -> torch.dtype:
        return self.product.a.operand.dtype

    @property
    def tf32(self) -> bool:
        return self.product.tf32

    @property
    def on_hopper(self) -> bool:
        return self.plan.architecture.target == "cuda:90"

    @property
    def interpreted(self) -> bool:
        return self.plan.device.type == "cpu"

    @property
    def multiprocessors(self) -> int:
        return self.plan.multiprocessors

    @property
    def is_half(self) -> bool:
        """Whether the operands are bf16 or fp16."""
        return self.dtype.itemsize == 2

    @cached_property
    def times(self) -> Times:
        """How long tiles of each size take; fitted to half precision."""
        product = self.product
        return Times(product.y.rows, product.y.columns, product.depth, product.matrices, self.multiprocessors)

    @property
    def is_exact(self) -> bool:
        """Whether float32 is multiplied as bf16x3. AMD's matrix cores take float32 directly."""
        return self.dtype == torch.float32 and not self.tf32 and self.plan.architecture.target.startswith("cuda")

    @property
    def is_splittable(self) -> bool:
        """Whether the operands can be split into bf16x3 in memory."""
        return self.dtype == torch.float32 and not self.product.nested and self.product.depth > 0

    @property
    def is_describable(self) -> bool:
        """Whether TMA can walk both operands."""
        return self.product.described is not None

    def tiles(self, block_m: int, block_n: int) -> int:
        """Return how many tiles of this size all matrices have, from the rounded sizes."""
        return -(-self.rows // block_m) * -(-self.columns // block_n) * self.matrices

    def split_k(self, tiles: int, most: int) -> int:
        """Return a split-K factor that gives every multiprocessor a tile, at most `most`."""
        wanted = self.multiprocessors // max(tiles, 1)
        return max(min(bucket(wanted + 1) // 2, most), 1)

    @property
    def key(self) -> tuple[object, ...]:
        """The name of this problem in tuning tables."""
        sizes = (self.rows, self.columns, self.depth, self.matrices)
        return *sizes, self.dtype, *(("tf32",) if self.tf32 else ())
