"""What a launch compiles to, as a key: two launches of one key share their compiled code."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import CONTIGUOUS, Case, Layout, Spec, is_differentiable

HOPPER = GPUTarget("cuda", 90, 32)


def planned_launches(
    spec: Spec, case: Case, dtype: torch.dtype, layout: Layout = CONTIGUOUS, target: str = "cuda:90"
) -> Iterator[PlannedLaunch]:
    """What the operator's forward and backward would launch on such a GPU."""
    inputs = spec.inputs(case, dtype, "meta", layout)
    leaves = {name: value.requires_grad_(is_differentiable(value)) for name, value in inputs.items() if _tensor(value)}
    with recorded_plans(target) as plans:
        made = spec.op(**{**inputs, **leaves})
        outputs = [made] if isinstance(made, torch.Tensor) else list(made)
        if spec.differentiable:
            torch.autograd.backward(outputs, [layout(torch.empty_like(output)) for output in outputs])
    for plan in plans:
        yield from plan.launches


def _tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def key_of(launch: PlannedLaunch) -> Hashable:
    """Found by Triton's own launch code, as at a real launch."""
    _, specialisation, options = _binder(launch.kernel)(**launch.arguments, **launch.options(), debug=False)
    return launch.kernel.__name__, str(specialisation), str(sorted(options.items()))


@cache
def _binder(kernel: Any) -> Any:
    return create_function_from_signature(kernel.signature, kernel.params, make_backend(HOPPER))
