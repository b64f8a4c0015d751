"""Tune one case of one operator: search the configuration of each kernel, then compare the result with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.auto.sides import Direction, signature
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Choice
from tilesmith.spec import Case, Spec

Timer = Callable[[Spec, Case, torch.dtype, str], float]
"""Returns the milliseconds on the device that `spec.op` takes in a mode of `bench`: "fwd", "bwd" or "both"."""


DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True)
class Tuned:
    """Milliseconds on the device, forward and backward together; of the forward where there is no gradient."""

    dtype: torch.dtype
    before_ms: float
    after_ms: float
    torch_ms: float


def tune_case(spec: Spec, case: Case, dtype: torch.dtype, timer: Timer) -> Tuned:
    """Find and store the fastest configuration of each of the operator's kernels, and whether PyTorch is faster."""
    operator = spec.op
    assert isinstance(operator, Operator), f"{spec.name} is not declared with @operator"
    device = torch.device("cuda", torch.cuda.current_device())
    training = "both" if spec.differentiable else "fwd"
    modes = {"training": training, "forward": "fwd"} | ({"backward": "bwd"} if spec.differentiable else {})

    def milliseconds(mode: str) -> float:
        return timer(spec, case, dtype, mode)

    with dispatch.use("triton"):
        before = milliseconds(training)
        for choice in _choices(spec, case, dtype):
            best, time = tuning.search(choice.config, _measure(choice, lambda: milliseconds(training)))
            tuning.keep(device, "configs", choice.kernels, choice.bucket, {"config": best.fields(), "ms": time})
        ours = {name: milliseconds(mode) for name, mode in modes.items()}
    with dispatch.use("torch"):
        torchs = {name: milliseconds(mode) for name, mode in modes.items()}
    winners = {name: _winner(ours[name], torchs[name]) for name in modes}
    inputs = spec.inputs(case, dtype, "meta")
    leaves = {name: inputs[name].detach().requires_grad_() for name in spec.leaves(inputs)}
    arguments = operator.completed(**{**inputs, **leaves})
    tuning.keep(device, "winners", spec.name, operator.bucket_of(arguments), winners)
    for direction in DIRECTIONS:
        if direction in winners:
            tuning.keep_measured(device, spec.name, signature(arguments, direction), direction, winners[direction])
    return Tuned(dtype, before, ours["training"], torchs["training"])


def _winner(ours: float, torchs: float) -> str:
    return "torch" if torchs < ours * tuning.NOTICEABLE else "tilesmith"


def _choices(spec: Spec, case: Case, dtype: torch.dtype) -> Sequence[Choice]:
    """Return the choices that the operator's plans make, forward and backward."""
    inputs = spec.inputs(case, dtype, "meta")
    leaves = {name: inputs[name].detach().requires_grad_() for name in spec.leaves(inputs)}
    with recorded_plans() as plans:
        made = spec.op(**{**inputs, **leaves})
        outputs = [one for one in ([made] if isinstance(made, Tensor) else made) if one.requires_grad]
        if outputs:
            torch.autograd.grad(outputs, list(leaves.values()), [torch.ones_like(one) for one in outputs])
    return [choice for plan in plans for choice in plan.choices]


def _measure(choice: Choice, milliseconds: Callable[[], float]) -> Callable[[Config], float]:
    """Return a function from a configuration of this choice to its time; infinity where it does not run."""

    def measure(config: Config) -> float:
        with tuning.trying(choice.kernels, choice.bucket, config):
            try:
                return milliseconds()
            except Exception:  # does not compile, or needs more registers or shared memory than there is
                return float("inf")

    return measure
