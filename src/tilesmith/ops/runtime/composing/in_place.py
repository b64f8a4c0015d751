"""Kernels that overwrite one of their arguments. The caller must not need its old values."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.kernels import MOST_PLANS, Kernels, look
from tilesmith.ops.runtime.plan import Plan


class InPlace:
    """Kernels that write their result over one of their arguments.

    They are not a torch operator, since PyTorch assumes that an operator leaves its arguments unchanged. The first
    `filled` arguments are memory for further results. The kernels in `into_new_memory` do not take those; they return
    these results before the last one.
    """

    def __init__(
        self, into_new_memory: Kernels, plan_in_place: Callable[..., None], *, overwrites: int, filled: int = 0
    ) -> None:
        self._into_new_memory = into_new_memory
        self._plan_in_place = plan_in_place
        self._overwrites = overwrites
        self._filled = filled
        self._plans: dict[Hashable, Plan] = {}

    def __call__(self, *arguments: Any) -> Tensor:
        overwritten: Tensor = arguments[self._overwrites]
        if overwritten.is_meta:  # computes nothing; `recorded_plans` records the launches
            made = self._into_new_memory(*arguments[self._filled :])
            return made[-1] if self._filled else made  # type: ignore[no-any-return]  # Kernels return what they say
        key = look(arguments)
        if key is None:  # PyTorch negates an argument lazily
            arguments = tuple(one.resolve_neg() if isinstance(one, Tensor) else one for one in arguments)
            key = look(arguments)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(self._into_new_memory.name, overwritten.device, arguments)
            self._plan_in_place(plan, *plan.operands)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        plan.run(arguments)
        torch.autograd.graph.increment_version(overwritten)  # so that autograd notices where it was saved
        return overwritten
