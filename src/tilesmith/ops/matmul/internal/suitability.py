"""Whether a kernel suits tensors. Training asks at every step, so the answers are remembered."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tilesmith.ops.runtime.kernels import ByLook, look
from tilesmith.ops.runtime.plan import Plan


class RememberedSuitability:
    """Ask `suits(plan, *operands)` once for each look of the tensors."""

    def __init__(self, suits: Callable[..., bool]) -> None:
        self._suits = suits
        self._remembered: ByLook[bool] = ByLook()

    def __call__(self, *tensors: Tensor) -> bool:
        """Return whether the kernel suits these tensors: the answer that its planner will find.

        Answers for meta tensors are not remembered, since `recorded_plans` may plan them for any GPU.
        """
        found = self._remembered.get(tensors)
        if found is None:
            if look(tensors) is None:
                return False
            plan = Plan("suitability", tensors[0].device, tensors)
            found = self._suits(plan, *plan.operands)
            if not tensors[0].is_meta:
                self._remembered.put(tensors, found)
        return found

    def forget(self) -> None:
        """Ask again at the next call: a threshold has changed."""
        self._remembered.clear()
