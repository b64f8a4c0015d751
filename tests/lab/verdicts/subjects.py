"""What the verdicts are measured on: every operator and every exercise in Triton, at small cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from tilesmith.lab.check.context import exact_products, seeded
from tilesmith.lab.expected import Call, Expected
from tilesmith.ops import SPECS
from tilesmith.spec import CONTIGUOUS, Case, Spec
from tilesmith.workshop.checking.triton_check import model_spec
from tilesmith.workshop.course.catalogue import Catalogue

MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Problem:
    """One set of inputs with everything that a verdict needs."""

    spec: Spec
    case: Case
    dtype: torch.dtype
    seed: int

    @cached_property
    def expected(self) -> Expected:
        spec = self.spec
        with exact_products(), seeded("cpu", self.seed):
            inputs = spec.inputs(self.case, self.dtype, "cpu", CONTIGUOUS)
            return Expected(
                spec.reference, inputs, spec.leaves(inputs), lambda output: torch.randn(output.shape, dtype=self.dtype)
            )

    def verdict(self, function: Callable[..., Any], mode: Any = None) -> tuple[bool, float]:
        """Return whether the function is right, and the largest share of the allowed error that it needs."""
        expected = self.expected
        with exact_products(), mode or nullcontext():
            call = Call(function, dict(expected.inputs), expected.differentiable)
            gradients = call.gradients(expected.cotangents)
        roundings = self.spec.roundings
        found = [expected.compare_output(number, one, roundings) for number, one in enumerate(call.outputs)]
        found += [
            expected.compare_gradient(name, one, roundings)
            for name, one in gradients.items()
            if one is not None and expected.exact.gradients[name] is not None
        ]
        used = [one.error / one.allowed for one in found if one.allowed]
        used += [one.worst_error / one.worst_allowed for one in found if one.worst_allowed]
        return all(one.passed for one in found), max(used, default=0.0)


@cache
def subjects() -> list[Spec]:
    """Return the specs of all operators, and of all exercises in Triton with their reference as operator."""
    exercises = [model_spec(one) for one in Catalogue().values() if (one.folder / "meaning.py").is_file()]
    return [*SPECS.values(), *(replace(spec, name=f"exercise {spec.name}") for spec in exercises)]


def small_cases(spec: Spec) -> list[Case]:
    """Return the cases that a second is enough for; at least one."""
    sized = sorted(((_bytes(spec, case), number) for number, case in enumerate(spec.cases)))
    chosen = [spec.cases[number] for size, number in sized if size <= MOST_BYTES]
    return chosen or [spec.cases[sized[0][1]]]


def problem_of(spec: Spec, seed: int) -> Problem:
    """Return the problem of a seed; cases and dtypes take turns."""
    cases = small_cases(spec)
    floating = [dtype for dtype in spec.dtypes if dtype in (torch.float32, torch.float16, torch.bfloat16)]
    return Problem(spec, cases[seed // len(floating) % len(cases)], floating[seed % len(floating)], seed)


def _bytes(spec: Spec, case: Case) -> int:
    if spec.cost is not None:
        return spec.cost(case, torch.float32).forward.bytes
    inputs = spec.inputs(case, torch.float32, "meta")
    return sum(one.nbytes for one in inputs.values() if isinstance(one, torch.Tensor))
