"""Whether a kernel suits tensors, asked at every step of a training and so remembered."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from tilesmith.ops.runtime.kernels import MOST_PLANS, look
from tilesmith.ops.runtime.plan import Plan


def known(kept: dict[Hashable, bool], suits: Callable[..., bool], *tensors: Tensor) -> bool:
    """What the planner will find. Kept, but not for meta tensors, which may be imagined on any GPU."""
    seen = look(tensors)
    key = suits, seen
    found = kept.get(key)
    if found is None:
        if seen is None:
            return False
        plan = Plan("known", tensors[0].device, tensors)
        found = suits(plan, *plan.operands)
        if not tensors[0].is_meta:
            if len(kept) >= MOST_PLANS:
                kept.clear()
            kept[key] = found
    return found
