"""Compiler facts of all trials but the first, which is compiled completely elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilesmith.lab.judge.isolation.children import Ended
from tilesmith.lab.judge.recorded import Failure
from tilesmith.lab.judge.replayed import Replayer
from tilesmith.lab.judge.task import Task, Trial
from tilesmith.lab.judge.timing.gpu_stage import placed_at
from tilesmith.lab.judge.trying import Trying
from tilesmith.lab.judge.verdict import Reason

SECONDS_FOR_FACTS = 120.0
MOST_TRANSLATED = 64
MOST_DOUBTFUL = 12


def compiled_trials(
    describer: Replayer, trying: Trying, kernels: Sequence[Mapping[str, Any]], targets: Sequence[str]
) -> Iterator[Failure]:
    """Yield what the compiler finds in the other trials: a branch may be for them alone, and a hint false in them.

    `kernels` are those of the first trial, compiled for `targets`.
    """
    failing = {target for kernel in kernels for target in kernel["errors"]}
    target = next((one for one in targets if one not in failing), None)
    if target is None:
        return
    try:
        yield from _rejected(describer, trying, target)
        yield from _misled(describer, trying.replayer, target)
    except Ended as ended:
        yield Failure(Reason("compiler", "compiles", f"the compiler {ended}"))


def _rejected(describer: Replayer, trying: Trying, target: str) -> Iterator[Failure]:
    """Let the compiler's front end read the kernels of every trial."""
    for recorded in trying.seen[1:][:MOST_TRANSLATED]:
        found = describer.translated(recorded, target, SECONDS_FOR_FACTS)
        if found is not None:
            reason = Reason(
                "compile-error", "compiles", str(found["error"])[:600], f"The kernel must compile for {target}.",
                kernel=found["name"], file=trying.candidate.main, line=found["line"],
            )  # fmt: skip
            yield placed_at(Failure(reason), recorded.trial)
            return


def _misled(describer: Replayer, replayer: Replayer, target: str) -> Iterator[Failure]:
    """Compile trials in which a hint to the compiler is false, and see whether an access relies on it."""
    for recorded in replayer.doubtful[:MOST_DOUBTFUL]:
        for kernel in describer.facts(recorded, (target,), SECONDS_FOR_FACTS):
            for one in kernel.get("findings", ()):
                if one["kind"] == "false-hint" and one["severity"] == "error":
                    place = {name: one[name] for name in ("file", "line")}
                    reason = Reason("false-hint", "safe", one["message"], one["advice"], kernel=kernel["name"], **place)
                    yield placed_at(Failure(reason), recorded.trial)
                    return


def bytes_and_floor(
    task: Task, kernels: Sequence[Mapping[str, Any]], trial: Trial | None, with_gradients: bool
) -> tuple[int | None, int | None]:
    """Return the bytes that the launches of one call move, and the least that the task needs."""
    if not kernels or trial is None or any("bytes" not in one for one in kernels):
        return None, None
    moved = sum(kernel["bytes"] * kernel["launches"] for kernel in kernels)
    cost = task.spec.cost
    if cost is None:
        return moved, None
    least = cost(trial.case, trial.dtype)
    floor = least.forward.bytes
    if with_gradients:
        floor += least.backward.bytes if least.backward else 0
    return moved, floor
