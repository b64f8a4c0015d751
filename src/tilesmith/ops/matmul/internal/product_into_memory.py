"""A product into existing memory, for use inside other operators."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.matmul.hopper.half import plan_half
from tilesmith.ops.matmul.internal.suitability import RememberedSuitability
from tilesmith.ops.matmul.internal.sum_of_products import suited_sides, summed_products
from tilesmith.ops.runtime.composing.in_place import InPlace
from tilesmith.ops.runtime.plan import Operand, Plan


def product_into(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Write a·b into y and return y, by the Hopper kernel or by the BLAS, whichever is faster.

    All three are matrices. Rows of y may have gaps between them.
    """
    if not y.is_meta and kernel_suits(y, a, b):
        return _product_over(y, a, b)
    return torch.mm(a, b, out=y)


@RememberedSuitability
def kernel_suits(plan: Plan, y: Operand, a: Operand, b: Operand) -> bool:
    """Return whether the Hopper kernel computes y = a·b."""
    return suited_sides(plan, y, (a, b)) is not None


def plan_into(plan: Plan, y: Operand, a: Operand, b: Operand) -> None:
    """Put y = a·b on the plan."""
    sides = suited_sides(plan, y, (a, b))
    assert sides is not None, "only called where the kernel suits"
    plan_half(plan, sides, y)


_product_over = InPlace(summed_products, plan_into, overwrites=0)
