"""Sums of up to three products of matrices, a·b + c·d + e·f, for use inside other operators and for patched models.

On Hopper one kernel (`hopper/half.py`) computes the whole sum where it is large enough. Separate GEMMs by the BLAS read
and write the sum once more for every product after the first. Other GPUs and the interpreter plan one product after the
other; callers that can use the BLAS call `sum_of_products`, which knows when the BLAS is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from tilesmith.ops.matmul.forward import plan_forward, plan_forward_with_addend
from tilesmith.ops.matmul.hopper.half import MOST_PAIRS, plan_half, suits_half
from tilesmith.ops.matmul.internal.suitability import RememberedSuitability
from tilesmith.ops.matmul.matrices import Side, as_left, as_right
from tilesmith.ops.runtime.kernels import kernels, must_be_dispatched
from tilesmith.ops.runtime.plan import Operand, Plan

Pair = tuple[Tensor, Tensor]


@kernels("summed_products")
def summed_products(
    a: Tensor, b: Tensor, second_a: Tensor | None, second_b: Tensor | None, third_a: Tensor | None,
    third_b: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the sum of the products of all pairs that are given."""
    return a.new_empty(a.shape[0], b.shape[1])


@summed_products.plan
def plan_sum_of_products(plan: Plan, *factors: Operand | None) -> Operand:
    """Put the sum on the plan: one Hopper kernel, or one product after the other."""
    given = [factor for factor in factors if factor is not None]
    a, b = given[:2]
    sides = suited_sides(plan, None, given)
    if sides is not None:
        y = plan.empty((a.shape[0], b.shape[1]), a.dtype)
        plan_half(plan, sides, y)
        return y
    total = plan_forward(plan, a, b, None, "", None, None, a.dtype, False)
    for a, b in zip(given[2::2], given[3::2], strict=True):
        assert isinstance(total, Operand)  # the type of a planner also allows several
        total = plan_forward_with_addend(plan, a, b, None, total, False)
    assert isinstance(total, Operand)  # as above
    return total


def sum_of_products(pairs: Sequence[Pair]) -> Tensor:
    """Return the sum of a·b over pairs of matrices, by one kernel or by the BLAS, whichever is faster."""
    factors = tuple(chain.from_iterable(pairs))
    missing = (None,) * (2 * MOST_PAIRS - len(factors))
    made: Tensor
    if torch.compiler.is_compiling() and len(factors) <= 2 * MOST_PAIRS:
        made = chosen_at_run_time(*factors, *missing)
        return made
    if suits_one_kernel(*factors):
        made = summed_products(*factors, *missing)
        return made
    (a, b), *others = pairs
    total = torch.mm(a, b)
    for a, b in others:
        total.addmm_(a, b)
    return total


@kernels("chosen_sum_of_products")
def chosen_at_run_time(
    a: Tensor, b: Tensor, second_a: Tensor | None, second_b: Tensor | None, third_a: Tensor | None,
    third_b: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the sum of the products of all given pairs. A compiled graph chooses who computes when it runs."""
    return a.new_empty(a.shape[0], b.shape[1])


@chosen_at_run_time.composed
def compute_sum_of_products(*factors: Tensor | None) -> Tensor:
    given = [factor for factor in factors if factor is not None]
    return sum_of_products(list(zip(given[::2], given[1::2], strict=True)))


def suits_one_kernel(*factors: Tensor) -> bool:
    """Return whether one kernel computes the sum of these products: a and b of each in turn."""
    if len(factors) > 2 * MOST_PAIRS or must_be_dispatched():
        return False
    return kernel_suits(*factors)


@RememberedSuitability
def kernel_suits(plan: Plan, *factors: Operand) -> bool:
    return suited_sides(plan, None, factors) is not None


def suited_sides(
    plan: Plan, y: Operand | None, factors: Sequence[Operand]
) -> list[tuple[Side, Side]] | None:  # fmt: skip
    """Return the sides of each product as TMA walks them, or None if the Hopper kernel does not suit.

    The result goes to y, or to new memory where y is None.
    """
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
