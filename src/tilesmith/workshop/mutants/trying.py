"""The fate of one mutant: the stage that it fails at, or why it passes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilesmith.lab.check import Trial
from tilesmith.toolchain.compiler import Target
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.exercise import Exercise
from tilesmith.workshop.cuda.check import PATIENCE, SECONDS_IN_ALL, CudaCheck
from tilesmith.workshop.mutants.cuda_mutants import cuda_mutants
from tilesmith.workshop.mutants.mutant import Mutant
from tilesmith.workshop.mutants.probing import Probes
from tilesmith.workshop.mutants.triton_mutants import triton_mutants

SECONDS = 90


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: "failed" at a stage of the check, "equivalent" for a reason, or "survived"."""

    name: str
    line: int
    fate: str
    why: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def mutants_of_exercise(exercise: Exercise) -> list[Mutant]:
    """Return the mutants of an exercise's model solution; none for an exercise of questions only."""
    if exercise.is_only_questions:
        return []
    source = exercise.solution.read_text(encoding="utf-8")
    return cuda_mutants(source) if exercise.is_cuda else triton_mutants(source)


class _InterpretedCheck(TritonCheck):
    """The stages that need no compiler, case by case: most mutants fail here in a fraction of a second."""

    def _pass_stages(self) -> tuple[str, list[str]]:
        self._require_parses()
        trials = [*self._trials(self.exercise.visible), *self._trials(self.exercise.hidden)]
        for trial in trials:
            self._require_runs(trial)
            self._require_right(trial)
        self._require_right_again(trials)
        return "right", []

    def _targets(self, trial: Trial, candidate: int | None) -> Sequence[Target]:
        return ()


class _CheckWithoutNvcc(CudaCheck):
    """nvcc would take seconds and find nothing that the other stages miss: mutants are valid C++."""

    seconds_to_run = 5.0  # of CPU time: silu takes 0.4 s with the thread sanitizer, and some mutants never end

    def _pass_stages(self) -> tuple[str, list[str]]:
        self._require_parses()
        self._require_right(self._run(self._built("address")))  # most mutants end here, after one build of three
        return super()._pass_stages()

    def _built_by_nvcc(self) -> None:
        return None


class MutantTrial:
    """Tries the mutants of one exercise."""

    def __init__(self, exercise: Exercise, known: Mapping[str, str]) -> None:
        self._exercise = exercise
        self._known = known
        self._probes: Probes | None = None

    def fate(self, mutant: Mutant) -> Fate:
        """Check a mutant; of one that passes, tell whether it is equivalent."""
        with TemporaryDirectory(prefix="tilesmith-") as folder:
            file = Path(folder).resolve() / self._exercise.file_name
            file.write_text(mutant.source, encoding="utf-8")
            seconds = int(SECONDS_IN_ALL) if self._exercise.is_cuda else SECONDS
            try:
                with _limited(seconds):
                    verdict = self._verdict(file)
            except _TooLong:
                return Fate(mutant.name, mutant.line, "failed", f"runs: still running after {seconds} s")
            if not verdict.passed:
                return Fate(mutant.name, mutant.line, "failed", f"{verdict.stage}: {verdict.message}")
            if mutant.name in self._known:
                return Fate(mutant.name, mutant.line, "equivalent", self._known[mutant.name])
            if not self._exercise.has_kernels:
                return Fate(mutant.name, mutant.line, "survived", "it passes every stage")
            self._probes = self._probes or Probes(self._exercise)
            same, wrong = self._probes.difference(file)
        if same:
            return Fate(
                mutant.name, mutant.line, "equivalent", "bit-identical on sizes that the exercise does not check"
            )
        why = (
            f"wrong on a size that the exercise does not check: {wrong}" if wrong else "right to rounding on every size"
        )
        return Fate(mutant.name, mutant.line, "survived", why)

    def _verdict(self, file: Path) -> Verdict:
        if self._exercise.is_cuda:
            return _CheckWithoutNvcc(self._exercise, file).verdict()
        if self._exercise.is_program:
            return ProgramCheck(self._exercise, file).verdict()
        verdict = _InterpretedCheck(self._exercise, file).verdict()
        return TritonCheck(self._exercise, file).verdict() if verdict.passed else verdict


class _TooLong(BaseException):
    """Not an Exception: a check turns exceptions into verdicts."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise _TooLong after so many seconds of CPU time, or PATIENCE times as many on the clock."""

    def stop(number: int, frame: Any) -> None:
        raise _TooLong

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(PATIENCE * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
