"""Tensors of drawn sizes, layouts, dtypes and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIZES = (0, 1, 1, 2, 3, 5, 9)  # the interpreter takes long for thousands of rows
LAYOUTS = ("dense", "dense", "transposed", "gaps", "offset", "reversed order", "expanded", "windows", "negated")
# Squares of the huge values, summed, stay finite in the precision that kernels compute in.
TINY = {torch.float32: 1e-20, torch.float16: 1e-6, torch.bfloat16: 1e-20, torch.float64: 1e-150}
HUGE = {torch.float32: 1e12, torch.float16: 1e3, torch.bfloat16: 1e12, torch.float64: 1e100}
SPECIAL = (float("nan"), float("inf"), float("-inf"))
NAN = SPECIAL[:1]


class Draw:
    """Draws the tensors of one call: of one dtype, each in a layout of its own.

    `choose` picks one element of a sequence. Hypothesis chooses in the property suite, a random generator elsewhere.
    """

    def __init__(self, choose: Callable[[Sequence[Any]], Any], route: str | None = None) -> None:
        self._choose = choose
        self.random = torch.Generator().manual_seed(self.one_of(range(2**31)))
        self.route = route or self.one_of(("interpret", "interpret", "interpret", "torch"))
        self.dtype = self.one_of(DTYPES)
        self.magnitude: float = self.one_of((1.0, 1.0, 1.0, 1e-3, 30.0, TINY[self.dtype], HUGE[self.dtype]))
        self.has_special = self.one_of((False, False, False, True))

    def one_of(self, options: Sequence[T]) -> T:
        picked: T = self._choose(options)
        return picked

    def maybe(self) -> bool:
        return self.one_of((False, True))

    def shape(self, least: int = 1, most: int = 3) -> list[int]:
        return [self.one_of(SIZES) for _ in range(self.one_of(range(least, most + 1)))]

    def dim(self, n_dimensions: int) -> int:
        return self.one_of(range(-n_dimensions, n_dimensions))

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, special: Sequence[float] = SPECIAL) -> Tensor:
        """Return random numbers of the call's magnitude; one element may be a special number.

        A tensor of a narrower dtype than the call's, such as a bias, stays finite.
        """
        magnitude = min(self.magnitude, HUGE.get(dtype or self.dtype, self.magnitude))
        values = torch.randn(shape, generator=self.random, dtype=torch.float64) * magnitude
        if self.has_special and values.numel() and self.one_of((False, False, True)):
            values.view(-1)[self.one_of(range(values.numel()))] = self.one_of(special)
        return self.laid_out(values.to(dtype or self.dtype))

    def parameter(self, *shape: int) -> Tensor:
        """Return finite random numbers of ordinary size."""
        return self.laid_out(torch.randn(shape, generator=self.random, dtype=torch.float64).to(self.dtype))

    def ordinary(self) -> None:
        """Draw no huge or tiny values for what follows: a chain of products would leave the dtype's range."""
        self.magnitude = min(max(self.magnitude, 1e-3), 2.0)

    def mask(self, *shape: int) -> Tensor:
        return self.laid_out(torch.rand(shape, generator=self.random) < self.one_of((0.7, 0.7, 0.3)))

    def laid_out(self, values: Tensor) -> Tensor:
        """Return a tensor of the same shape with drawn strides and a drawn offset."""
        kind = self.one_of(LAYOUTS)
        if kind == "transposed" and values.ndim > 1:
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == "gaps" and values.ndim:
            return values.repeat_interleave(2, -1)[..., ::2]
        if kind == "offset":
            return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(values.shape)
        if kind == "reversed order":
            order = tuple(reversed(range(values.ndim)))
            return values.permute(order).contiguous().permute(order)
        if kind == "expanded" and values.ndim > 1:
            dim = self.one_of(range(values.ndim))
            return values.narrow(dim, 0, min(1, values.shape[dim])).expand(values.shape)
        if kind == "windows" and values.ndim > 1 and values.numel():  # rows that overlap in memory
            return values.flatten()[: values[0].numel() + values.shape[0] - 1].unfold(0, values[0].numel(), 1).view_as(
                values
            ) if values.ndim == 2 else values  # fmt: skip
        if kind == "negated" and values.is_floating_point():
            return torch._neg_view(values.neg())
        return values
