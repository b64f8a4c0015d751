"""A product into memory that is there already, for use inside other operators."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tilesmith.ops.matmul.hopper.half import plan_half
from tilesmith.ops.matmul.internal.suitability import known
from tilesmith.ops.matmul.internal.sum_of_products import suited_sides, summed_products
from tilesmith.ops.runtime.in_place import InPlace
from tilesmith.ops.runtime.plan import Operand, Plan


def product_into(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """y = a·b of matrices, whose rows may be apart, by whichever is faster: the kernel for Hopper, or the BLAS."""
    if not y.is_meta and suits_into(y, a, b):
        return _product_over(y, a, b)
    return torch.mm(a, b, out=y)


_suited: dict[Hashable, bool] = {}


def suits_into(y: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether that is the kernel."""
    return known(_suited, _into_suits, y, a, b)


def _into_suits(plan: Plan, y: Operand, a: Operand, b: Operand) -> bool:
    return suited_sides(plan, y, (a, b)) is not None


def plan_into(plan: Plan, y: Operand, a: Operand, b: Operand) -> None:
    sides = suited_sides(plan, y, (a, b))
    assert sides is not None, "only asked for where it suits"
    plan_half(plan, sides, y)


_product_over = InPlace(summed_products, plan_into, overwrites=0)
