"""Make the inputs of a trial and what the operator must compute from them."""

from __future__ import annotations

import torch

from tilesmith.lab.check.context import poisoned_memory, seeded
from tilesmith.lab.check.trial import Trial
from tilesmith.lab.expected import Expected, is_in_place
from tilesmith.spec import COTANGENTS, Inputs, SpecError, described, source_of


def prepared(trial: Trial) -> tuple[Inputs, Expected]:
    with seeded(trial.device, trial.seed), poisoned_memory():
        inputs = trial.spec.inputs(trial.case, trial.dtype, trial.device, trial.layout)
        return inputs, _expected(trial, inputs)


def _expected(trial: Trial, inputs: Inputs) -> Expected:
    spec, layout = trial.spec, trial.layout.in_turn(COTANGENTS)
    try:
        return Expected(
            spec.reference,
            inputs,
            spec.leaves(inputs),
            lambda output: layout(torch.randn(output.shape, dtype=trial.dtype, device=output.device)),
        )
    except Exception as error:
        reason = described(error, source_of(spec.reference))
        if is_in_place(spec) and spec.leaves(inputs):
            reason += "; if the operator has no gradients, set differentiable=False in its SPEC"
        raise SpecError(f"{spec.name}: the reference fails for {trial.case!r}, {trial.dtype}: {reason}") from error
