"""Tell whether a mutant that passes its check computes the same as the model solution on other sizes.

The probes are sizes that the exercise does not check: every number of every size is changed in turn. Sizes on which the
solution itself fails are no probes: the exercise does not promise them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import torch

from tilesmith.lab.check import Trial
from tilesmith.lab.check import run as compared
from tilesmith.lab.comparison import identical
from tilesmith.spec import Case, SpecError
from tilesmith.workshop.checking import failure_messages
from tilesmith.workshop.checking.loading import load_module
from tilesmith.workshop.checking.traced_call import TracedCall, trace_call
from tilesmith.workshop.checking.triton_check import model_spec, seeded_inputs
from tilesmith.workshop.course.exercise import Exercise, Size

MOST_ELEMENTS = 40_000  # of all inputs: the interpreter is slow


class Probes:
    """The probes of one exercise, with the results of its model solution."""

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise
        self._spec = model_spec(exercise)
        self._wanted = [(trial, call) for trial in self._trials() if (call := self._solved(trial)) is not None]

    def difference(self, file: Path) -> tuple[bool, str]:
        """Return whether a mutant gives the solution's results to the last bit, and where its results are wrong."""
        same = True
        function = getattr(load_module(file), self._exercise.function)
        spec = replace(self._spec, op=function)
        for trial, wanted in self._wanted:
            mine = replace(trial, spec=spec)
            call = self._traced(mine, file)
            sizes = ", ".join(f"{name} = {size}" for name, size in trial.case.sizes.items())
            where = f"{sizes}, {str(trial.dtype).removeprefix('torch.')}, {trial.layout.name}"
            reason = failure_messages.not_run(call, file)
            if reason is not None:
                return False, f"{where}: {reason}"
            # The outputs say nothing about the gradients of a differentiable operator.
            if self._spec.differentiable or not all(map(identical, call.outputs, wanted.outputs)):
                same = False
                wrong = [one.message for one in compared(mine) if not one.passed]
                if wrong:
                    return False, f"{where}: {wrong[0]}"
        return same, ""

    def _trials(self) -> Iterator[Trial]:
        spec, exercise = self._spec, self._exercise
        kinds = cycle(product(spec.dtypes, spec.layouts))
        for case, (dtype, layout) in zip(_neighbours((*exercise.visible, *exercise.hidden)), kinds, strict=False):
            yield Trial(spec, case, dtype, layout, "cpu")

    def _solved(self, trial: Trial) -> TracedCall | None:
        """Return the solution's call; None where the solution fails, or the probe is too large."""
        try:
            inputs = seeded_inputs(trial, seed=0)
        except (SpecError, RuntimeError, ValueError):
            return None
        if sum(one.numel() for one in inputs.values() if isinstance(one, torch.Tensor)) > MOST_ELEMENTS:
            return None
        call = self._traced(trial, self._exercise.solution)
        try:
            solved = failure_messages.not_run(call, self._exercise.solution) is None
            return call if solved and all(one.passed for one in compared(trial)) else None
        except SpecError:
            return None

    def _traced(self, trial: Trial, file: Path) -> TracedCall:
        exercise = self._exercise
        inputs = seeded_inputs(trial, seed=0)
        return trace_call(trial.spec.op, inputs, file, exercise.allow, exercise.forbid, targets=())


def _neighbours(sizes: tuple[Size, ...]) -> list[Case]:
    """Return the sizes with one number changed in turn: one, one more, one less, twice and one more."""
    found: dict[tuple[tuple[str, float], ...], Case] = {}
    known = {tuple(sorted(size.sizes.items())) for size in sizes}
    for size in sizes:
        for name, number in size.sizes.items():
            for other in dict.fromkeys((1, number + 1, number - 1, 2 * number + 1)):
                changed = {**size.sizes, name: other}
                key = tuple(sorted(changed.items()))
                if other > 0 and key not in known:
                    found.setdefault(key, Case(size.name, **changed))
    return list(found.values())
