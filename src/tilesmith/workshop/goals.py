"""Goals: figures of the learner's kernels, from their trace and their binary, that must come to something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilesmith.lab.inspect.model import AccessFacts, ArgumentFacts, Kernel, TargetFacts
from tilesmith.workshop.attempt import Attempt
from tilesmith.workshop.exercise import ExerciseError, Goal


@dataclass(frozen=True)
class Measured:
    """A figure, and the place in the learner's file that it comes from."""

    value: float
    where: str = ""


Metric = Callable[[Attempt, Goal], Measured]


def _of_arguments(figure: Callable[[ArgumentFacts], float], kind: str) -> Metric:
    """The largest among the tensors, or that of the one that the goal names."""

    def metric(made: Attempt, goal: Goal) -> Measured:
        found = [
            (figure(argument), kernel, argument.name)
            for kernel in made.kernels
            for argument in kernel.arguments
            if argument.is_tensor and goal.argument in (None, argument.name)
        ]
        if not found:
            raise LookupError(f"no kernel takes a tensor called {goal.argument!r}; the goal is about that one")
        value, kernel, name = max(found, key=lambda one: one[0])
        lines = sorted({one.line for one in kernel.accesses if one.argument == name and one.kind == kind})
        return Measured(value, f"{name} on line{'s' if len(lines) > 1 else ''} {_listed(lines)}" if lines else name)

    return metric


def _of_accesses(
    figure: Callable[[AccessFacts], float | None], choose: Callable[..., tuple[float, int, str]]
) -> Metric:
    """The worst among loads and stores for which the figure is known."""

    def metric(made: Attempt, goal: Goal) -> Measured:
        found = [
            (value, access.line, f"the {access.kind} of {access.argument} on line {access.line}")
            for kernel in made.kernels
            for access in kernel.accesses
            if goal.argument in (None, access.argument) and (value := figure(access)) is not None
        ]
        if not found:
            raise LookupError("no load or store was seen")
        value, _, where = choose(found)
        return Measured(value, where)

    return metric


def _of_target(figure: Callable[[TargetFacts], float], choose: Callable[..., float]) -> Metric:
    """What the compiler made of the kernels for the goal's target."""

    def metric(made: Attempt, goal: Goal) -> Measured:
        found = [figure(kernel.targets[goal.target]) for kernel in made.kernels if goal.target in kernel.targets]
        if not found:
            raise LookupError(f"nothing was compiled for {goal.target}")
        return Measured(choose(found), f"on {goal.target}")

    return metric


def _total(figure: Callable[[Kernel], float]) -> Metric:
    return lambda made, goal: Measured(sum(map(figure, made.kernels)))


def _turns_wasted(facts: TargetFacts) -> float:
    return sum(access.wavefronts - access.ideal_wavefronts for access in facts.shared_accesses)


METRICS: dict[str, Metric] = {
    "loads_per_element": _of_arguments(lambda one: one.loads_per_element, "load"),
    "loads_per_element_in_program": _of_arguments(lambda one: one.loads_per_element_in_program, "load"),
    "stores_per_element": _of_arguments(lambda one: one.stores_per_element, "store"),
    "sector_efficiency": _of_accesses(lambda one: one.efficiency, min),
    "vector_bytes": _of_accesses(lambda one: one.vector_bytes, min),
    "masked_fraction": _of_accesses(lambda one: one.masked_fraction, max),
    "spills": _of_target(lambda one: one.spill_bytes, max),
    "registers": _of_target(lambda one: one.registers, max),
    "shared_bytes": _of_target(lambda one: one.shared_bytes, max),
    "occupancy": _of_target(lambda one: one.occupancy or 0.0, min),
    "bank_conflicts": _of_target(_turns_wasted, max),
    "tensor_cores": _of_target(lambda one: float(one.tensor_cores), max),
    "pipelined": _of_target(lambda one: float(one.async_copies), max),
    "requests": _total(lambda one: sum(access.requests or 0 for access in one.accesses)),
    "launches": _total(lambda one: one.launches),
    "programs": _total(lambda one: one.programs),
    "bytes_moved": _total(lambda one: one.bytes),
    "candidates": lambda made, goal: Measured(len(made.candidates)),
    "missing_masks": _total(lambda one: sum(finding.kind == "missing-mask" for finding in one.findings)),
}


def measure(goal: Goal, made: Attempt) -> Measured:
    """What a goal's metric comes to. Raises LookupError where it cannot be told for this call."""
    if goal.metric not in METRICS:
        raise ExerciseError(f"no metric is called {goal.metric!r}; there are {', '.join(sorted(METRICS))}")
    return METRICS[goal.metric](made, goal)


def _listed(lines: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, lines[:-1])), str(lines[-1])]))
