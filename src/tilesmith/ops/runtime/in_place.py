"""Kernels that write over one of their arguments, for memory that nobody else reads afterwards."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.kernels import MOST_PLANS, Kernels, look
from tilesmith.ops.runtime.plan import Plan


class InPlace:
    """Kernels whose result goes where one of their arguments was, instead of into new memory.

    They are no torch operator: PyTorch would take the argument to be the same afterwards. The first `filled` arguments
    are memory for further results; the kernels into new memory do without them, and give these before the other.
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
        if overwritten.is_meta:  # nothing is written; what would be launched can be recorded
            made = self._into_new_memory(*arguments[self._filled :])
            return made[-1] if self._filled else made  # type: ignore[no-any-return]  # Kernels return what they say
        key = look(arguments)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(self._into_new_memory.name, overwritten.device, arguments)
            self._plan_in_place(plan, *plan.operands)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        plan.run(arguments)
        torch.autograd.graph.increment_version(overwritten)  # whoever kept it for a backward is to be told
        return overwritten
