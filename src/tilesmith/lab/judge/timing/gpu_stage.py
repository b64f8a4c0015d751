"""The stage that needs a GPU: trials that the interpreter could not run, then the times of one large case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from tilesmith.lab.judge.isolation.children import Child
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder
from tilesmith.lab.judge.replaying.operators import kind_of
from tilesmith.lab.judge.task import Draw, Task, TaskError, Trial
from tilesmith.lab.judge.timing.reference_time import References
from tilesmith.lab.judge.timing.timed import DeviceJudge, NotTimed
from tilesmith.lab.judge.verdict import Reason

MOST_CONFIGURATIONS = 12
NEEDS_GPU = "needs-gpu"
Start = Callable[[str], AbstractContextManager[Child]]


@dataclass
class GpuFindings:
    """What the GPU showed: times, trials that are decided now, failures, and notes."""

    times: dict[str, Any] | None = None
    decided: list[Trial] = field(default_factory=list)
    failures: list[tuple[Trial, Failure]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class GpuStage:
    """One candidate on the GPU. `recorder` loads it in a new process; `check_tape` applies the rules to a record."""

    task: Task
    seed: int
    device: str
    start: Start
    recorder: Callable[[Task], AbstractContextManager[Recorder]]
    check_tape: Callable[[Recorded], None]
    references: References | None
    findings: GpuFindings = field(default_factory=GpuFindings)

    def run(self, waiting: Sequence[Recorded], seen: Sequence[Recorded]) -> GpuFindings:
        """Decide the trials that wait for a GPU; if all are right, take the times."""
        if waiting:
            with self.start("time") as child:
                for recorded in waiting:
                    try:
                        self._decide(recorded, child)
                        self.findings.decided.append(recorded.trial)
                    except Failure as failure:
                        self.findings.failures.append((recorded.trial, failure))
        if not self.findings.failures:
            self._time(seen)
        return self.findings

    def _decide(self, recorded: Recorded, child: Child) -> None:
        """Judge one trial by its outputs on the GPU. Raises Failure."""
        moved = _moved_outputs(recorded)
        if moved or (self.task.rules.torch == "any" and self.task.rules.must_launch):
            message = "a GPU does not show which elements the kernels stored, and PyTorch may have moved them"
            raise Failure(Reason(NEEDS_GPU, "honest", message, "Let kernels store the outputs."), open=True)
        kinds = {recorded.tape["storages"][reference[0]]["kind"] for reference in recorded.references}
        if kinds - {"new"} and not self.task.rules.in_place:
            message = "an output shares memory with an input, or with memory from before the call"
            raise Failure(Reason("alias", "honest", message, "Return new memory."))
        judge = DeviceJudge(self.task, child, self.seed, self.device)
        draws: tuple[Draw, ...] = ("fresh", "wide")
        for draw in draws:
            judge.check(recorded, draw)
        self.findings.notes.append("without a trace: accesses are judged by guards around tensors, races by outputs")

    def _time(self, seen: Sequence[Recorded]) -> None:
        """Take the times of the first case that works."""
        task = self.task.timed or self.task
        try:
            cases = task.timed_cases()
        except TaskError as error:
            self.findings.notes.append(f"not timed: {error}")
            return
        for number, case in enumerate(cases):
            trial = Trial(case, (task.dtypes or task.spec.dtypes)[0], task.layouts[0])
            try:
                self.findings.times = self._times_of(task, trial, seen)
                return
            except NotTimed as reason:
                self.findings.notes.append(f"not timed: {reason}")
                return
            except Failure as failure:
                grown = not any(case == one for one in task.spec.cases)
                too_large = grown and failure.reason.stage not in ("honest", "right")
                if failure.open or (too_large and number + 1 < len(cases)):
                    sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
                    self.findings.notes.append(f"not timed at {sizes}: {failure.reason.message[:160]}")
                    continue
                self.findings.failures.append((trial, failure))
                return

    def _times_of(self, task: Task, trial: Trial, seen: Sequence[Recorded]) -> dict[str, Any]:
        with self.recorder(task) as recorder, self.start("time") as child:
            tapes = [self._recorded(recorder, trial, 0, seen)]
            for configuration in range(1, min(len(tapes[0].tape["configurations"]), MOST_CONFIGURATIONS)):
                tapes.append(self._recorded(recorder, trial, configuration, seen))
            judge = DeviceJudge(task, child, self.seed, self.device)
            times = judge.times(tapes)
            gradients = tapes[0].gradients is not None
            facts: dict[str, Any] = {"device": self.device, "reference_ms": None, "floor_ms": None}
            drawn = judge.fresh_inputs(tapes[0])
            if self.references is not None and drawn is not None:
                facts = self.references.facts(task, trial, drawn.at, gradients=gradients)
        median, reference, least = times["median_ms"], facts["reference_ms"], facts["floor_ms"]
        if times["host_reads"]:
            self.findings.notes.append("the host reads values during a call, which device times do not hold")
        return {
            "case": trial.case.name,
            "sizes": dict(trial.case.sizes),
            "dtype": trial.dtype_name,
            "mode": "forward and backward" if gradients else "forward",
            **times,
            **facts,
            "speedup": reference / median if reference else None,
            "share_of_limit": least / median if least else None,
        }

    def _recorded(self, recorder: Recorder, trial: Trial, configuration: int, seen: Sequence[Recorded]) -> Recorded:
        recorded = recorder.record(trial, perform=False, configuration=configuration)
        self.check_tape(recorded)
        known = {operator for one in seen for operator in _moved_outputs(one)}
        new = _moved_outputs(recorded) - known
        if new:
            message = f"at the timed size PyTorch moves elements into the outputs ({', '.join(sorted(new))})"
            raise Failure(Reason("not-by-a-kernel", "honest", message, "Let a kernel store every element."))
        texts = {kernel.get("text") for one in seen for kernel in one.tape["kernels"]}
        for kernel in recorded.tape["kernels"]:
            if seen and kernel.get("text") not in texts:
                name = str(kernel.get("name"))[:60]
                self.findings.notes.append(f"{name} runs at the timed size only, where outputs alone are judged")
        return recorded


def _moved_outputs(recorded: Recorded) -> set[str]:
    """Return the operators that move elements into the storages of outputs."""
    outputs = {reference[0] for reference in recorded.references}
    return {
        str(step["operator"])
        for step in recorded.tape["steps"]
        if "operator" in step
        and kind_of(step) == "move"
        and any(reference[0] in outputs for reference in step.get("results") or ())
    }


def placed_at(failure: Failure, trial: Trial) -> Failure:
    """Return the failure with the trial's case in its reason."""
    reason = replace(
        failure.reason, case=trial.case.name, sizes=dict(trial.case.sizes), dtype=trial.dtype_name,
        layout=trial.layout.name,
    )  # fmt: skip
    return Failure(reason, open=failure.open)
