"""Whether a kernel suits tensors. Training asks at every step, so the answers are remembered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from tilesmith.ops.runtime.kernels import MOST_PLANS, look
from tilesmith.ops.runtime.plan import Plan


class RememberedSuitability:
    """Ask `suits(plan, *operands)` once for each look of the tensors."""

    def __init__(self, suits: Callable[..., bool]) -> None:
        self._suits = suits
        self._remembered: dict[Hashable, bool] = {}

    def __call__(self, *tensors: Tensor) -> bool:
        """Return whether the kernel suits these tensors: the answer that its planner will find.

        Answers for meta tensors are not remembered, since `recorded_plans` may plan them for any GPU.
        """
        return self.with_look(look(tensors), tensors)

    def with_look(self, seen: Hashable | None, tensors: Sequence[Tensor]) -> bool:
        """Return whether the kernel suits these tensors, for a caller that has computed their look already."""
        if seen is None:
            return False
        found = self._remembered.get(seen)
        if found is None:
            plan = Plan("suitability", tensors[0].device, tensors)
            found = self._suits(plan, *plan.operands)
            if not tensors[0].is_meta:
                if len(self._remembered) >= MOST_PLANS:
                    self._remembered.clear()
                self._remembered[seen] = found
        return found

    def forget(self) -> None:
        """Ask again at the next call: a threshold has changed."""
        self._remembered.clear()
