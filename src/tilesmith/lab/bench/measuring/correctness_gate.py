"""No time without a right answer: the operator's check before it is timed, and a check of what the timed calls gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timed_calls import InputSet, TimedCalls, computed
from tilesmith.lab.bench.measuring.timing import Outputs
from tilesmith.lab.check import Trial, run
from tilesmith.spec import CONTIGUOUS

SETS_CHECKED = 2


def refusal(trial: Trial) -> str | None:
    """Why an operator gets no time: what its check found wrong; None where it is right."""
    try:
        return _first_wrong(trial)
    except Exception as error:  # the reference or the inputs fail: the case cannot be judged
        return f"the check cannot run: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Judgement:
    """What a check of timed calls found wrong, and which input the calls have overwritten."""

    wrong: str | None = None
    overwritten: str | None = None


def judged(timed: TimedCalls, outputs: Sequence[Outputs]) -> Judgement:
    """Hold what timed calls returned against the reference, by the rule that `check` has.

    The inputs differ from set to set and have changed since the first call, so that an output which was kept instead
    of computed is wrong here. Where a provider overwrites its inputs, as some do to save memory, repeated calls have
    no right answer, and one call on new inputs is judged instead.
    """
    # The last sets: whatever a provider keeps from its first calls must not pass.
    places = range(len(timed.sets))[-SETS_CHECKED:]
    for place in places:
        expected = timed.expected(place)
        overwritten = _changed(timed.sets[place], expected)
        if overwritten:
            return Judgement(_wrong_when_new(timed), overwritten)
        wrong = _first_wrong(_trial(timed, expected, outputs[place]))
        if wrong:
            return Judgement(f"what the timed calls returned is wrong: {wrong}")
    return Judgement()


def _wrong_when_new(timed: TimedCalls) -> str | None:
    once = replace(timed)
    once.add_sets(1)
    return _first_wrong(_trial(once, once.expected(0), once.calls[0]()))


def _trial(timed: TimedCalls, expected: InputSet, outputs: Outputs) -> Trial:
    """A trial whose operator gives what was recorded, and whose reference does in this mode what was timed."""
    spec = timed.spec
    recorded = replace(
        spec,
        op=lambda **_: outputs,
        reference=computed(spec.reference, spec, timed.mode),
        make_inputs=lambda *_: expected.values,
        differentiable=False,
    )
    return Trial(recorded, timed.case, timed.dtype, CONTIGUOUS, timed.device)


def _first_wrong(trial: Trial) -> str | None:
    for result in run(trial):
        if not result.passed:
            figures = (
                "" if result.error == float("inf") else f" (error {result.error:.2g}, allowed {result.allowed:.2g})"
            )
            return f"{result.what}{figures}: {result.message}"
    return None


def _changed(one: InputSet, other: InputSet) -> str | None:
    """The first value in which the two differ."""
    for name, value in other.values.items():
        if isinstance(value, Tensor) and not torch.equal(_bytes(value), _bytes(one.values[name])):
            return name
    return None


def _bytes(tensor: Tensor) -> Tensor:
    """What equals itself whatever it holds, in every dtype: NaN does not, and of float8 PyTorch compares nothing."""
    return tensor.reshape(-1).contiguous().view(torch.uint8)
