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
from tilesmith.ops.runtime.plan import Choice
from tilesmith.spec import Case, Spec, is_differentiable


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
    before = _milliseconds(spec.op, inputs)
    for choice in _choices(spec, case, dtype):
        best, time = tuning.search(choice.config, _timer(spec, inputs, choice))
        tuning.keep(device, "configs", choice.kernels, choice.bucket, {"config": best.fields(), "ms": time})
    after, torchs = _milliseconds(spec.op, inputs), _milliseconds(spec.op.native, inputs)  # type: ignore[attr-defined]
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    winner = "torch" if torchs < after * tuning.NOTICEABLE else "tilesmith"
    tuning.keep(device, "winners", spec.name, tuning.bucket_of(tensors), winner)
    return Tuned(dtype, before, after, torchs)


def _choices(spec: Spec, case: Case, dtype: torch.dtype) -> Sequence[Choice]:
    """The choices that the operator's plans make, forward and backward."""
    inputs = spec.inputs(case, dtype, "meta")
    with recorded_plans() as plans:
        _backward(spec.op, inputs)()
    return [choice for plan in plans for choice in plan.choices]


def _timer(spec: Spec, inputs: dict[str, Any], choice: Choice) -> Callable[[Config], float]:
    def measure(config: Config) -> float:
        with tuning.trying(choice.kernels, choice.bucket, config):
            try:
                return _milliseconds(spec.op, inputs)
            except Exception:  # does not compile, or needs more registers or shared memory than there is
                return float("inf")

    return measure


def _milliseconds(function: Callable[..., Any], inputs: dict[str, Any]) -> float:
    with torch.cuda.stream(torch.cuda.Stream()):
        return float(do_bench_cudagraph(_backward(function, inputs), rep=20, return_mode="median"))


def _backward(function: Callable[..., Any], inputs: dict[str, Any]) -> Callable[[], object]:
    """A call of the forward and the backward."""
    leaves = {name: value.detach().requires_grad_() for name, value in inputs.items() if is_differentiable(value)}
    arguments = {**inputs, **leaves}

    def call() -> object:
        made = function(*arguments.values())  # in the operator's order: PyTorch's own may have other names
        outputs = [made] if isinstance(made, Tensor) else list(made)
        return torch.autograd.grad(outputs, list(leaves.values()), [torch.ones_like(one) for one in outputs])

    return call
