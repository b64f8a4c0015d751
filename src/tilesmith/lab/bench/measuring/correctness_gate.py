"""No time for a wrong result: check the operator before timing, and the results of the timed calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timed_calls import InputSet, TimedCalls, computed
from tilesmith.lab.bench.measuring.timing import Outputs
from tilesmith.lab.check import Result, Trial, run
from tilesmith.spec import CONTIGUOUS

SETS_CHECKED = 2
FAR = 0.1  # of the norm of PyTorch's result


def check_failure(trial: Trial, check: Callable[[Trial], list[Result]] = run) -> str | None:
    """Return what the operator's check finds wrong; None where it passes. Whoever computes may be timed."""
    try:
        return _first_wrong(replace(trial, spec=replace(trial.spec, kernels=False)), check)
    except Exception as error:  # the reference or the inputs fail: the case cannot be checked
        return f"the check cannot run: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Judgement:
    """What is wrong with the timed results, and which input the calls overwrote."""

    wrong: str | None = None
    overwritten: str | None = None


def judge_outputs(timed: TimedCalls, outputs: Sequence[Outputs]) -> Judgement:
    """Compare the results of timed calls with the reference, by the rule of `check`.

    Input sets differ and change between the two rounds, so a cached output is wrong here. Where a provider overwrites
    its inputs, repeated calls have no correct result, and one call on new inputs is checked instead.
    """
    # The last sets, so that a result cached from the first calls does not pass; and all that look wrong.
    places = range(len(timed.sets))[-SETS_CHECKED:]
    for place in [*_suspects(timed, outputs, places.start), *places]:
        expected = timed.expected(place)
        overwritten = _changed(timed.sets[place], expected)
        if overwritten:
            return Judgement(_wrong_when_new(timed), overwritten)
        wrong = _first_wrong(_trial(timed, expected, outputs[place]))
        if wrong:
            return Judgement(f"the timed calls return a wrong result: {wrong}")
    return Judgement()


def _suspects(timed: TimedCalls, outputs: Sequence[Outputs], sets: int) -> list[int]:
    """Return input sets whose outputs are far from PyTorch's: calls that did no work. The rule of `check` decides."""
    reference = computed(timed.spec.reference, timed.spec, timed.mode)
    found = []
    for place in range(sets):
        try:
            plain = reference(**timed.expected(place).values)
            near = all(_is_near(one, other) for one, other in zip(outputs[place], plain, strict=True))
        except Exception:
            near = False
        if not near:
            found.append(place)
    return found[:SETS_CHECKED]


def _is_near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    left, right = one.detach().to(torch.float32), other.detach().to(torch.float32)
    return bool((left - right).norm() <= FAR * right.norm())


def _wrong_when_new(timed: TimedCalls) -> str | None:
    once = replace(timed)
    once.add_sets(1)
    return _first_wrong(_trial(once, once.expected(0), once.calls[0]()))


def _trial(timed: TimedCalls, expected: InputSet, outputs: Outputs) -> Trial:
    """Return a trial whose operator returns the recorded outputs, and whose reference computes this mode."""
    spec = timed.spec
    recorded = replace(
        spec,
        op=lambda **_: outputs,
        reference=computed(spec.reference, spec, timed.mode),
        make_inputs=lambda *_: expected.values,
        differentiable=False,
        kernels=False,
    )
    return Trial(recorded, timed.case, timed.dtype, CONTIGUOUS, timed.device)


def _first_wrong(trial: Trial, check: Callable[[Trial], list[Result]] = run) -> str | None:
    for result in check(trial):
        if not result.passed:
            figures = (
                "" if result.error == float("inf") else f" (error {result.error:.2g}, allowed {result.allowed:.2g})"
            )
            return f"{result.what}{figures}: {result.message}"
    return None


def _changed(one: InputSet, other: InputSet) -> str | None:
    """Return the name of the first value in which two input sets differ."""
    for name, value in other.values.items():
        if isinstance(value, Tensor) and not torch.equal(_bytes(value), _bytes(one.values[name])):
            return name
    return None


def _bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes, which compare equal for NaN and for float8 too."""
    return tensor.reshape(-1).contiguous().view(torch.uint8)
