"""Operands of any number of dimensions as batches of matrices, as torch.matmul sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch

from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand

Side = tuple[Operand, bool]
"""A matrix as a TMA descriptor walks it, and whether its rows are contiguous; if not, the descriptor sees columns."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of an operand for every place in a batch; a stride of zero where all of a dimension share one."""

    operand: Operand
    rows: int
    columns: int
    strides: tuple[int, int]
    batch_strides: tuple[int, ...]

    def transposed(self) -> Matrix:
        return replace(self, rows=self.columns, columns=self.rows, strides=self.strides[::-1])

    @property
    def is_shared(self) -> bool:
        """Whether the whole batch has the same matrix."""
        return not any(self.batch_strides)

    def described(self, count: int, batch_stride: int) -> Side | None:
        """What a descriptor can walk: `count` of these matrices, and whether their rows lie along memory.

        If not, they are seen transposed. None where the layout does not allow it.
        """
        for along, matrix in ((True, self), (False, self.transposed())):
            if matrix.strides[1] != 1 and matrix.columns != 1:
                continue
            # Where there is one row only, its stride may be any: take one that is allowed.
            stride = matrix.strides[0] if matrix.rows != 1 else -(-matrix.columns // 16) * 16
            seen = self.operand.seen_as((matrix.rows, matrix.columns), (stride, 1))
            if count != 1 and batch_stride != 0:
                seen = seen.seen_as((count, *seen.shape), (batch_stride, *seen.strides))
            if seen.describable():
                return seen, along
        return None


def factors(a: Operand, b: Operand) -> tuple[Matrix, Matrix, tuple[int, ...]]:
    """The operands of a·b as matrices, a vector counting as a row on the left and as a column on the right."""
    batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    return as_left(a, batch), as_right(b, batch), batch


def as_left(a: Operand, batch: tuple[int, ...]) -> Matrix:
    rows, row_stride = (a.shape[-2], a.strides[-2]) if len(a.shape) > 1 else (1, 0)
    return Matrix(a, rows, a.shape[-1], (row_stride, a.strides[-1]), _batch_strides(a, batch))


def as_right(b: Operand, batch: tuple[int, ...]) -> Matrix:
    if len(b.shape) == 1:
        return Matrix(b, b.shape[0], 1, (b.strides[0], 0), _batch_strides(b, batch))
    return Matrix(b, b.shape[-2], b.shape[-1], (b.strides[-2], b.strides[-1]), _batch_strides(b, batch))


def as_result(y: Operand, a: Matrix, b: Matrix) -> Matrix:
    """A tensor of the result's shape as matrices: dimensions that a vector does not have are put in."""
    strides = list(y.strides)
    if len(b.operand.shape) == 1:
        strides.append(0)
    if len(a.operand.shape) == 1:
        strides.insert(-1, 0)
    return Matrix(y, a.rows, b.columns, (strides[-2], strides[-1]), tuple(strides[:-2]))


def result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of torch.matmul's result."""
    return (*torch.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def with_batch_in_rows(batch: tuple[int, ...], *matrices: Matrix) -> list[Matrix] | None:
    """All matrices of a batch as one with more rows; None where memory does not allow it for each of these."""
    shape = (*batch, matrices[0].rows, 1)
    walk = as_rows(shape, *((*matrix.batch_strides, matrix.strides[0], 0) for matrix in matrices))
    if walk.nested:
        return None
    return [
        replace(matrix, rows=prod(shape), strides=(strides[0], matrix.strides[1]), batch_strides=())
        for matrix, strides in zip(matrices, walk.strides, strict=True)
    ]


def _batch_strides(operand: Operand, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides along the batch; zero along what the operand does not have, or has one of."""
    own = list(zip(operand.shape[:-2], operand.strides[:-2], strict=True))
    missing = [0] * (len(batch) - len(own))
    return (*missing, *(0 if size == 1 else stride for size, stride in own))


def multiple(size: int, *strides: int) -> int:
    """What a kernel is told that a size is a multiple of: 16 where that lets it load more at once, else nothing.

    It does where one of the operands has neighbours in memory along that size. Otherwise a batch of another size would
    only compile anew.
    """
    return 16 if 1 in strides and size % 16 == 0 else 1
