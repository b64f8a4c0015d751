"""AdamW with torch's constructor, state and behaviour, computed by our kernels where they can."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch._guards import TracingContext

from tilesmith.optim.updates import Updates


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with all parameters of a dtype, up to 512 of them, updated by two launches.

    Arguments, state and state dicts are torch's. Our kernels update dense parameters in single or half precision on a
    GPU whose gradient has the same dtype and layout; `foreach` and `fused` say how torch updates the others, and those
    of a group with `amsgrad` or `differentiable`. With `capturable` or `fused` steps are counted on the device, and
    with `capturable` a CUDA graph can hold a step.
    """

    @cached_property
    def _updates(self) -> Updates:
        """Not made by the constructor, which an optimiser that is copied or unpickled does not go through."""
        return Updates()

    def _init_group(self, group: dict[str, Any], *collected: Any) -> bool:
        """Takes its part out of torch's step, which calls this for each group: with empty lists for the parameters
        that have a gradient, those gradients and their state. What is in the lists afterwards, torch updates."""
        if TracingContext.try_get() is not None:  # torch.compile runs this while it traces; the step is due later
            return self._collected_by_torch(group, *collected)
        updates = self._updates
        if group is self.param_groups[0]:
            updates.begin(list(self.state.values()))
        ours = self._is_ours(group)
        has_complex = False
        if not ours or not updates.add_known(group):
            has_complex = self._collected_by_torch(group, *collected)
            if ours:
                updates.add(group, collected, self.state)
        if group is self.param_groups[-1]:
            updates.run(list(self.state.values()))
        return has_complex

    def _collected_by_torch(self, group: dict[str, Any], *collected: Any) -> bool:
        has_complex: bool = super()._init_group(group, *collected)  # type: ignore[no-untyped-call]  # PyTorch's
        return has_complex

    def _is_ours(self, group: dict[str, Any]) -> bool:
        if group["amsgrad"] or group["differentiable"]:
            return False
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            return False  # a GradScaler leaves it to the step to undo its scaling
        return all(isinstance(one, float | int) for one in (*group["betas"], group["eps"], group["weight_decay"]))
