"""Operators that may add their first argument to what they give: y = x + update, a residual branch whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.operator import Operator


class ResidualOperator(Operator):
    """One with a flag `residual`. Its kernels give the result, and after it what only their gradient needs."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named.get("residual") is True:
            x = arguments[0] if arguments else next(iter(self._bound((), named)))
            if must_be_added_apart(x):
                return x + self(*arguments, **{**named, "residual": False})
        made = super().__call__(*arguments, **named)
        return made[0] if isinstance(made, tuple) else made


def must_be_added_apart(x: object) -> bool:
    """Whether autocast has an operator see x rounded, while a sum is of x as it is."""
    if not isinstance(x, Tensor) or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return False
    return x.dtype != torch.get_autocast_dtype(x.device.type)
