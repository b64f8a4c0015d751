"""One combination of case, dtype and layout to check, and the results of its comparisons."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilesmith.spec import Case, Layout, Spec


@dataclass(frozen=True)
class Result:
    """One comparison. `error` and `allowed` are relative to the norm of the reference."""

    op: str
    case: str
    dtype: str
    layout: str
    what: str  # "forward", "gradient x"; of other failures, "backward", "input x", "race", "kernels", …
    error: float
    allowed: float
    passed: bool
    message: str = ""


@dataclass(frozen=True)
class Trial:
    """One combination of case, dtype and layout to check."""

    spec: Spec
    case: Case
    dtype: torch.dtype
    layout: Layout
    device: str
    repeated: bool = False  # whether to call again with other numbers
    seed: int = 0
    second_backward: bool = True  # whether to call backward again

    def result(self, what: str, error: float, allowed: float, message: str = "") -> Result:
        dtype = str(self.dtype).removeprefix("torch.")
        passed = not message
        return Result(self.spec.name, self.case.name, dtype, self.layout.name, what, error, allowed, passed, message)

    def failure(self, what: str, message: str) -> Result:
        return self.result(what, float("inf"), 0.0, message)
