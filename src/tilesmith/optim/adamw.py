"""AdamW with torch's constructor, state and behaviour, on our kernels where they apply."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch._guards import TracingContext

from tilesmith.arguments import FLAG, Rule, checked, is_number
from tilesmith.optim.step_updates import Updates


def _is_rate(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else is_number(value) and value >= 0


def _is_pair_of_shares(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_rate(one) and one < 1 for one in value)


RULES: dict[str, Rule] = {
    "params": (lambda value: hasattr(value, "__iter__"), "an iterable of parameters or of groups"),
    "lr": (_is_rate, "a number of at least 0"),
    "betas": (_is_pair_of_shares, "two numbers of at least 0 and below 1"),
    **dict.fromkeys(("eps", "weight_decay"), (_is_rate, "a number of at least 0")),
    **dict.fromkeys(("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused"), FLAG),
}


@checked(RULES)
class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW that updates all parameters of a dtype, up to 512 of them, in two launches.

    Arguments, state and state dicts are torch's. Our kernels update dense parameters in fp32, bf16 or fp16 on a GPU
    whose gradient has the same dtype and layout. torch updates all others, and groups with `amsgrad` or
    `differentiable`, as `foreach` and `fused` say. With `capturable` or `fused` the device counts the steps, and with
    `capturable` a CUDA graph can capture a step.
    """

    @cached_property
    def _updates(self) -> Updates:
        """Created on first use: a copied or unpickled optimiser does not run the constructor."""
        return Updates()

    def _init_group(self, group: dict[str, Any], *collected: Any) -> bool:
        """Update our parameters of a group, and collect the others for torch.

        torch's step calls this for each group, with empty lists for parameters, gradients and state. torch updates
        the parameters that are in the lists afterwards.
        """
        if TracingContext.try_get() is not None:  # torch.compile is tracing; the step runs later
            return self._collect_for_torch(group, *collected)
        updates = self._updates
        if group is self.param_groups[0]:
            updates.begin(list(self.state.values()))
        ours = self._is_ours(group)
        has_complex = False
        if not ours or not updates.add_remembered(group):
            has_complex = self._collect_for_torch(group, *collected)
            if ours:
                updates.add(group, collected, self.state)
        if group is self.param_groups[-1]:
            updates.run(list(self.state.values()))
        return has_complex

    def _collect_for_torch(self, group: dict[str, Any], *collected: Any) -> bool:
        has_complex: bool = super()._init_group(group, *collected)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        return has_complex

    def _is_ours(self, group: dict[str, Any]) -> bool:
        if group["amsgrad"] or group["differentiable"]:
            return False
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            return False  # a GradScaler expects the step to undo its scaling
        return all(isinstance(one, float | int) for one in (*group["betas"], group["eps"], group["weight_decay"]))
