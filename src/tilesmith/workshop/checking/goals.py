"""The metrics that goals are about: numbers from the trace and the binary of the learner's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilesmith.lab.inspect.model import AccessFacts, ArgumentFacts, Kernel, TargetFacts
from tilesmith.workshop.checking.traced_call import TracedCall
from tilesmith.workshop.course.exercise import ExerciseError, Goal


@dataclass(frozen=True)
class Measured:
    """A value, and the place in the learner's file that causes it."""

    value: float
    where: str = ""


Metric = Callable[[TracedCall, Goal], Measured]


def _of_arguments(figure: Callable[[ArgumentFacts], float], kind: str) -> Metric:
    """Return a metric: the largest value over the tensor arguments, or over the argument that the goal names."""

    def metric(call: TracedCall, goal: Goal) -> Measured:
        found = [
            (figure(argument), kernel, argument.name)
            for kernel in call.kernels
            for argument in kernel.arguments
            if argument.is_tensor and goal.argument in (None, argument.name)
        ]
        if not found:
            raise LookupError(f"no kernel takes a tensor called {goal.argument!r}, which the goal is about")
        value, kernel, name = max(found, key=lambda one: one[0])
        kinds = ("store", "atomic") if kind == "store" else (kind,)
        lines = sorted({one.line for one in kernel.accesses if one.argument == name and one.kind in kinds})
        return Measured(value, f"{name} on line{'s' if len(lines) > 1 else ''} {_listed(lines)}" if lines else name)

    return metric


def _of_accesses(figure: Callable[[AccessFacts], float | None], worst: Callable[..., tuple[float, int, str]]) -> Metric:
    """Return a metric: the worst value over all loads and stores."""

    def metric(call: TracedCall, goal: Goal) -> Measured:
        found = [
            (value, access.line, f"the {access.kind} of {access.argument} on line {access.line}")
            for kernel in call.kernels
            for access in kernel.accesses
            if goal.argument in (None, access.argument) and (value := figure(access)) is not None
        ]
        if not found:
            raise LookupError("the kernels load and store nothing")
        value, _, where = worst(found)
        return Measured(value, where)

    return metric


def _of_target(figure: Callable[[TargetFacts], float], worst: Callable[..., float]) -> Metric:
    """Return a metric of the compiled kernels for the goal's target."""

    def metric(call: TracedCall, goal: Goal) -> Measured:
        found = [figure(kernel.targets[goal.target]) for kernel in call.kernels if goal.target in kernel.targets]
        if not found:
            raise LookupError(f"no kernel was compiled for {goal.target}")
        return Measured(worst(found), f"on {goal.target}")

    return metric


def _total(figure: Callable[[Kernel], float]) -> Metric:
    """Return a metric: the sum over all kernels."""
    return lambda call, goal: Measured(sum(map(figure, call.kernels)))


def _missing_masks(call: TracedCall, goal: Goal) -> Measured:
    """Return the number of accesses that need a mask and have none, and their lines."""
    found = [finding for kernel in call.kernels for finding in kernel.findings if finding.kind == "missing-mask"]
    lines = sorted({finding.line for finding in found if finding.line is not None})
    return Measured(len(found), f"line{'s' if len(lines) > 1 else ''} {_listed(lines)}" if lines else "")


def _bank_conflicts(facts: TargetFacts) -> float:
    """Return the wavefronts of shared memory beyond the fewest possible."""
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
    "bank_conflicts": _of_target(_bank_conflicts, max),
    "tensor_cores": _of_target(lambda one: float(one.tensor_cores), max),
    "pipelined": _of_target(lambda one: float(one.async_copies), max),
    "requests": _total(lambda one: sum(access.requests or 0 for access in one.accesses)),
    "launches": lambda call, goal: Measured(call.launches),
    "programs": lambda call, goal: Measured(call.programs),
    "bytes_moved": _total(lambda one: one.bytes),
    "candidates": lambda call, goal: Measured(len({str(one) for one in call.candidates})),
    "missing_masks": _missing_masks,
}


def measure(goal: Goal, call: TracedCall) -> Measured:
    """Return the value of a goal's metric. Raises LookupError where this call has no such value."""
    if goal.metric not in METRICS:
        raise ExerciseError(f"there is no metric {goal.metric!r}; the metrics are {', '.join(sorted(METRICS))}")
    return METRICS[goal.metric](call, goal)


def _listed(lines: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, lines[:-1])), str(lines[-1])]))
