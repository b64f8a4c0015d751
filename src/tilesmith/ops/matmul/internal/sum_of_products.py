"""Sums of up to three products of matrices, a·b + c·d + e·f, for use inside other operators and for patched models.

On Hopper one kernel (`hopper/half.py`) computes the whole sum where it is large enough. Separate GEMMs by the BLAS read
and write the sum once more for every product after the first. Other GPUs and the interpreter plan one product after the
other; callers that can use the BLAS call `sum_of_products`, which knows when the BLAS is faster.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.matmul.forward import plan_forward, plan_forward_with_addend
from tilesmith.ops.matmul.hopper.half import MOST_PAIRS, plan_half, suits_half
from tilesmith.ops.matmul.internal.suitability import RememberedSuitability
from tilesmith.ops.matmul.matrices import Side, as_left, as_right
from tilesmith.ops.runtime.kernels import MOST_PLANS, kernels, look, must_be_dispatched
from tilesmith.ops.runtime.plan import Operand, Plan

Pair = tuple[Tensor, Tensor]


@kernels("summed_products")
def summed_products(
    a: Tensor, b: Tensor, second_a: Tensor | None = None, second_b: Tensor | None = None,
    third_a: Tensor | None = None, third_b: Tensor | None = None,
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
    factors = pairs[0] if len(pairs) == 1 else tuple(chain.from_iterable(pairs))
    compute = compute_sum_of_products
    if torch.compiler.is_compiling() and len(factors) <= 2 * MOST_PAIRS:
        compute = chosen_at_run_time
    made: Tensor = compute(*factors)
    return made


@kernels("chosen_sum_of_products")
def chosen_at_run_time(
    a: Tensor, b: Tensor, second_a: Tensor | None = None, second_b: Tensor | None = None,
    third_a: Tensor | None = None, third_b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum of the products of all given pairs. A compiled graph chooses who computes when it runs."""
    return a.new_empty(a.shape[0], b.shape[1])


@chosen_at_run_time.composed
def compute_sum_of_products(*factors: Any) -> Tensor:
    while factors[-1] is None:
        factors = factors[:-1]
    seen = None if len(factors) > 2 * MOST_PAIRS or must_be_dispatched() else look(factors)
    if kernel_suits.with_look(seen, factors):
        made: Tensor = summed_products.with_look(seen, factors)
        return made
    total = torch.mm(factors[0], factors[1])
    for place in range(2, len(factors), 2):
        total.addmm_(factors[place], factors[place + 1])
    return total


def suits_one_kernel(*factors: Tensor) -> bool:
    """Return whether one kernel computes the sum of these products: a and b of each in turn."""
    if len(factors) > 2 * MOST_PAIRS or must_be_dispatched():
        return False
    return kernel_suits(*factors)


@RememberedSuitability
def kernel_suits(plan: Plan, *factors: Operand) -> bool:
    return suited_sides(plan, None, factors) is not None


@kernels("chosen_linear")
def linear_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x · weightᵀ by one kernel or by the BLAS, whichever is faster. A compiled graph chooses when it runs."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_linear_plans: dict[Hashable, Plan | None] = {}  # None: the BLAS computes
_UNKNOWN: Any = object()


@linear_product.composed
def compute_linear(x: Tensor, weight: Tensor) -> Tensor:
    seen = look((x, weight))
    if seen is None or x.is_meta:
        rows = x.reshape(-1, x.shape[-1])
        return sum_of_products([(rows, weight.t())]).view(*x.shape[:-1], weight.shape[0])
    plan = _linear_plans.get(seen, _UNKNOWN)  # one search: hashing a look takes time
    if plan is _UNKNOWN:
        if len(_linear_plans) >= MOST_PLANS:
            _linear_plans.clear()
        plan = _linear_plans[seen] = planned_linear(Plan("chosen_linear", x.device, (x, weight)))
    made: Any = F.linear(x, weight) if plan is None else plan.run((x, weight))
    return made  # type: ignore[no-any-return]  # one output


def planned_linear(plan: Plan) -> Plan | None:
    """Return the plan of x · weightᵀ by one kernel; None where it does not suit, or rows of x are apart."""
    x, weight = (one for one in plan.operands if isinstance(one, Operand))
    *outer, depth = x.shape
    if x.strides != (*(depth * prod(outer[place + 1 :]) for place in range(len(outer))), 1):
        return None
    y = plan.empty((*outer, weight.shape[0]), x.dtype)
    rows, y_rows = (one.seen_as((prod(outer), one.shape[-1]), (one.shape[-1], 1)) for one in (x, y))
    sides = suited_sides(plan, y_rows, (rows, weight.permuted((1, 0))))
    if sides is None:
        return None
    plan_half(plan, sides, y_rows)
    plan.outputs = (y,)
    return plan


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
