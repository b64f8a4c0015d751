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
    """A matrix of an operand for every index of a batch. A batch stride of zero: the dimension shares one matrix."""

    operand: Operand
    rows: int
    columns: int
    strides: tuple[int, int]
    batch_strides: tuple[int, ...]

    def transposed(self) -> Matrix:
        """Return the transposed view."""
        return replace(self, rows=self.columns, columns=self.rows, strides=self.strides[::-1])

    @property
    def is_shared(self) -> bool:
        """Whether the whole batch has the same matrix."""
        return not any(self.batch_strides)

    def described(self, count: int, batch_stride: int) -> Side | None:
        """Return `count` matrices as a TMA descriptor walks them, and whether their rows are contiguous.

        If not, the descriptor sees them transposed. None where the layout does not allow TMA.
        """
        for along, matrix in ((True, self), (False, self.transposed())):
            if matrix.strides[1] != 1 and matrix.columns != 1:
                continue
            # A single row may have any stride: take one that TMA allows.
            stride = matrix.strides[0] if matrix.rows != 1 else -(-matrix.columns // 16) * 16
            seen = self.operand.seen_as((matrix.rows, matrix.columns), (stride, 1))
            if count != 1 and batch_stride != 0:
                seen = seen.seen_as((count, *seen.shape), (batch_stride, *seen.strides))
            if seen.describable():
                return seen, along
        return None


def factors(a: Operand, b: Operand) -> tuple[Matrix, Matrix, tuple[int, ...]]:
    """Return the operands of a·b as matrices, and the batch. A vector is a row on the left, a column on the right."""
    batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    return as_left(a, batch), as_right(b, batch), batch


def as_left(a: Operand, batch: tuple[int, ...]) -> Matrix:
    """Return the left operand as matrices of this batch."""
    rows, row_stride = (a.shape[-2], a.strides[-2]) if len(a.shape) > 1 else (1, 0)
    return Matrix(a, rows, a.shape[-1], (row_stride, a.strides[-1]), _batch_strides(a, batch))


def as_right(b: Operand, batch: tuple[int, ...]) -> Matrix:
    """Return the right operand as matrices of this batch."""
    if len(b.shape) == 1:
        return Matrix(b, b.shape[0], 1, (b.strides[0], 0), _batch_strides(b, batch))
    return Matrix(b, b.shape[-2], b.shape[-1], (b.strides[-2], b.strides[-1]), _batch_strides(b, batch))


def as_result(y: Operand, a: Matrix, b: Matrix) -> Matrix:
    """Return a tensor of the result's shape as matrices: adds the dimensions that a vector lacks."""
    strides = list(y.strides)
    if len(b.operand.shape) == 1:
        strides.append(0)
    if len(a.operand.shape) == 1:
        strides.insert(-1, 0)
    return Matrix(y, a.rows, b.columns, (strides[-2], strides[-1]), tuple(strides[:-2]))


def result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of torch.matmul's result."""
    return (*torch.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def with_batch_in_rows(batch: tuple[int, ...], *matrices: Matrix) -> list[Matrix] | None:
    """Return every batch as one matrix with more rows; None if the strides of any of them do not allow it."""
    shape = (*batch, matrices[0].rows, 1)
    walk = as_rows(shape, *((*matrix.batch_strides, matrix.strides[0], 0) for matrix in matrices))
    if walk.nested:
        return None
    return [
        replace(matrix, rows=prod(shape), strides=(strides[0], matrix.strides[1]), batch_strides=())
        for matrix, strides in zip(matrices, walk.strides, strict=True)
    ]


def in_batch(matrix: Operand) -> Operand:
    """Return a matrix as a batch of one; a batch as it is."""
    if len(matrix.shape) == 3:
        return matrix
    return matrix.seen_as((1, *matrix.shape), (matrix.shape[0] * matrix.strides[0], *matrix.strides))


def _batch_strides(operand: Operand, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides along the batch: zero along dimensions that the operand lacks, or has size one in."""
    own = list(zip(operand.shape[:-2], operand.strides[:-2], strict=True))
    missing = [0] * (len(batch) - len(own))
    return (*missing, *(0 if size == 1 else stride for size, stride in own))


def multiple(size: int, *strides: int) -> int:
    """Return the multiple of a size that a kernel compiles for: 16 where that widens its loads, else 1.

    Loads widen where an operand is contiguous along that size. Elsewhere a batch of another size would only compile
    again.
    """
    return 16 if 1 in strides and size % 16 == 0 else 1
