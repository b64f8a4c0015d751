"""Tuning one case of one operator: its configurations one after the other, then the result beside PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench_cudagraph

from tilesmith.ops.runtime import tuning
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Choice
from tilesmith.spec import Case, Spec, called


@dataclass(frozen=True)
class Tuned:
    """Milliseconds on the device for forward and backward together."""

    dtype: torch.dtype
    before_ms: float
    after_ms: float
    torch_ms: float


def tune_case(spec: Spec, case: Case, dtype: torch.dtype) -> Tuned:
    """Find and keep the fastest configuration of each of the operator's kernels, and whether PyTorch beats them."""
    device = torch.device("cuda", torch.cuda.current_device())
    inputs = spec.inputs(case, dtype, device)
    before = _milliseconds(spec, spec.op, inputs)
    for choice in _choices(spec, case, dtype):
        best, time = tuning.search(choice.config, _timer(spec, inputs, choice))
        tuning.keep(device, "configs", choice.kernels, choice.bucket, {"config": best.fields(), "ms": time})
    operator = spec.op
    assert isinstance(operator, Operator), f"{spec.name} is not declared with @operator"
    after, torchs = _milliseconds(spec, operator, inputs), _milliseconds(spec, operator.native, inputs)
    with torch.no_grad():
        winners = {
            "training": _winner(after, torchs),
            "forward": _winner(_milliseconds(spec, operator, inputs), _milliseconds(spec, operator.native, inputs)),
        }
    tuning.keep(device, "winners", spec.name, operator.bucket_for(**inputs), winners)
    return Tuned(dtype, before, after, torchs)


def _winner(ours: float, torchs: float) -> str:
    return "torch" if torchs < ours * tuning.NOTICEABLE else "tilesmith"


def _choices(spec: Spec, case: Case, dtype: torch.dtype) -> Sequence[Choice]:
    """The choices that the operator's plans make, forward and backward."""
    inputs = spec.inputs(case, dtype, "meta")
    with recorded_plans() as plans:
        _step(spec, spec.op, inputs)()
    return [choice for plan in plans for choice in plan.choices]


def _timer(spec: Spec, inputs: dict[str, Any], choice: Choice) -> Callable[[Config], float]:
    def measure(config: Config) -> float:
        with tuning.trying(choice.kernels, choice.bucket, config):
            try:
                return _milliseconds(spec, spec.op, inputs)
            except Exception:  # does not compile, or needs more registers or shared memory than there is
                return float("inf")

    return measure


def _milliseconds(spec: Spec, function: Callable[..., Any], inputs: dict[str, Any]) -> float:
    """Forward and backward together; where gradients are off, the forward alone."""
    with torch.cuda.stream(torch.cuda.Stream()):
        return float(do_bench_cudagraph(_step(spec, function, inputs), rep=20, return_mode="median"))


def _step(spec: Spec, function: Callable[..., Any], inputs: dict[str, Any]) -> Callable[[], object]:
    """A call of the forward, and of the backward where gradients are on."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in spec.leaves(inputs)}
    arguments = {**inputs, **leaves}

    def call() -> object:
        made = called(function, arguments)
        if not torch.is_grad_enabled():
            return made
        outputs = [one for one in ([made] if isinstance(made, Tensor) else made) if one.requires_grad]
        return torch.autograd.grad(outputs, list(leaves.values()), [torch.ones_like(one) for one in outputs])

    return call
