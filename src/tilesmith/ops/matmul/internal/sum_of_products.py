"""Sums of up to three products of matrices, a·b + c·d + e·f, for use inside other operators and for patched models.

On Hopper one kernel (`hopper_product`) computes the sum where it is large enough: apart, the BLAS reads and writes it
once more for every product but the first. Elsewhere, and in the interpreter, the same is planned in parts; but who can
multiply by the BLAS asks `product_of_pairs`, which knows when that is faster.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain

import torch
from torch import Tensor

from tilesmith.ops.matmul.forward import plan_forward, plan_forward_with_addend
from tilesmith.ops.matmul.hopper.half import MOST_PAIRS, plan_half, suits_half
from tilesmith.ops.matmul.internal.suitability import known
from tilesmith.ops.matmul.matrices import Side, as_left, as_right
from tilesmith.ops.runtime.kernels import kernels, must_be_dispatched
from tilesmith.ops.runtime.plan import Operand, Plan

Pair = tuple[Tensor, Tensor]


@kernels("summed_products")
def summed_products(
    a: Tensor, b: Tensor, second_a: Tensor | None, second_b: Tensor | None, third_a: Tensor | None,
    third_b: Tensor | None,
) -> Tensor:  # fmt: skip
    """The sum of as many products as are given."""
    return a.new_empty(a.shape[0], b.shape[1])


@summed_products.plan
def plan_summed(plan: Plan, *factors: Operand | None) -> Operand:
    given = [factor for factor in factors if factor is not None]
    a, b = given[:2]
    sides = suited_sides(plan, None, given)
    if sides is not None:
        y = plan.empty((a.shape[0], b.shape[1]), a.dtype)
        plan_half(plan, sides, y)
        return y
    total = plan_forward(plan, a, b, None, "", None, None, a.dtype, False)
    for a, b in zip(given[2::2], given[3::2], strict=True):
        assert isinstance(total, Operand)  # a planner may give several
        total = plan_forward_with_addend(plan, a, b, None, total, False)
    assert isinstance(total, Operand)  # as above
    return total


def product_of_pairs(pairs: Sequence[Pair]) -> Tensor:
    """The sum of a·b over pairs of matrices, by whichever is faster, this kernel or the BLAS."""
    factors = tuple(chain.from_iterable(pairs))
    if suits_pairs(*factors):
        missing = (None,) * (2 * MOST_PAIRS - len(factors))
        made: Tensor = summed_products(*factors, *missing)
        return made
    (a, b), *others = pairs
    total = torch.mm(a, b)
    for a, b in others:
        total.addmm_(a, b)
    return total


_suited: dict[Hashable, bool] = {}


def suits_pairs(*factors: Tensor) -> bool:
    """Whether the sum of these products, a and b of each in turn, is one kernel."""
    if len(factors) > 2 * MOST_PAIRS or must_be_dispatched():
        return False
    return known(_suited, _pairs_suit, *factors)


def _pairs_suit(plan: Plan, *factors: Operand) -> bool:
    return suited_sides(plan, None, factors) is not None


def suited_sides(
    plan: Plan, y: Operand | None, factors: Sequence[Operand]
) -> list[tuple[Side, Side]] | None:  # fmt: skip
    """The sides of each product as the kernel walks them, if it is the one to; into new memory where y is None."""
    sides = []
    for a, b in zip(factors[::2], factors[1::2], strict=True):
        left = as_left(a, ()).described(1, 0)
        right = as_right(b, ()).transposed().described(1, 0)
        if left is None or right is None:
            return None
        sides.append((left, right))
    if y is None:
        rows, columns = factors[0].shape[0], factors[1].shape[1]
        y = factors[0].seen_as((rows, columns), (columns, 1))
    return sides if y.describable() and suits_half(plan, sides, (y, True)) else None
