"""Try a candidate: record one trial after the other, and replay each while the next is recorded."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tilesmith.lab.judge.constructor_work import refuse_derived_weights
from tilesmith.lab.judge.isolation.children import Ended
from tilesmith.lab.judge.laying import BadOutput
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder
from tilesmith.lab.judge.replayed import Replayer
from tilesmith.lab.judge.task import Draw, Task, Trial
from tilesmith.lab.judge.timing.gpu_stage import MOST_CONFIGURATIONS, placed_at
from tilesmith.lab.judge.verdict import Reason

SOME_STRETCHED_PROGRAMS, MOST_STRETCHED_PROGRAMS = 300, 320
SECONDS_FOR_STRETCHED = 3.0
_DECISIVE = ("loads", "runs", "honest")  # a failure here ends the judgement


@dataclass
class Trying:
    """The trials of one judgement. `ask` turns the end of the candidate's process into a Failure."""

    task: Task
    trials: list[Trial]
    main: str
    seed: int
    recorder: Recorder
    replayer: Replayer
    ask: Callable[[Callable[[], Any], str], Any]
    check_tape: Callable[[Recorded], None]
    pool: ThreadPoolExecutor
    progress: Callable[[str], None]
    judged: list[tuple[Trial, Future[None]]] = field(default_factory=list)
    seen: list[Recorded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _replay_lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, first: Callable[[Recorded], None]) -> None:
        """Try everything until a failure decides. `first` gets the first record, whose kernels are compiled."""
        for trial in self._in_order():
            self.progress(f"{trial.case.name} {trial.dtype_name}")
            recorded = self._record(trial, tries_wide=self._tries_wide(trial))
            if recorded is not None:
                if not self.seen:
                    first(recorded)
                self._submit(recorded, self._draws(recorded))
            if self._is_decided():
                return
        self._try_configurations()
        self._try_stretched()
        self._try_other_weights()

    @property
    def planned(self) -> int:
        """How many trials there are, also where a failure ended the judgement."""
        return max(len(self.trials), len(self.judged))

    def _in_order(self) -> list[Trial]:
        """Return the trials with the largest given size first: it is compiled while the others run."""
        given = [trial for trial in self.trials if not trial.hidden]
        first = max(given, key=lambda one: self.task.floor_bytes(one) or 0, default=None)
        rest = [trial for trial in self.trials if trial is not first]
        return rest if first is None else [first, *rest]

    def _try_stretched(self) -> None:
        """Try one large size after the other, where the interpreter can: it runs one program after the other."""
        for trial in [] if self._is_decided() else self.task.stretched(self.seed):
            self.progress(trial.case.name)
            self.recorder.seconds = SECONDS_FOR_STRETCHED
            try:
                programs = _programs(self.recorder.record(trial, perform=False).tape)
                if programs > MOST_STRETCHED_PROGRAMS:
                    self._try_as_large_as_possible(trial, programs)
                    continue
                started = time.monotonic()
                recorded = self.recorder.record(trial)
                self.check_tape(recorded)
            except (Failure, BadOutput) as failure:
                if isinstance(failure, Failure) and failure.reason.kind not in ("exception", "bad-output"):
                    self._fail(trial, failure)
                else:  # a candidate may say which sizes it does not take
                    self._note_untried(trial, str(failure))
                continue
            except Ended as ended:
                self._note_untried(trial, f"the candidate {ended}")
                return
            if time.monotonic() - started < SECONDS_FOR_STRETCHED / 2:  # the replay traces accesses, and takes longer
                self._submit(recorded, ("fresh",))

    def _try_as_large_as_possible(self, trial: Trial, programs: int) -> None:
        """Try the size at which there are so many programs that their numbers need more than eight bits."""
        smaller = self.task.shrunk(trial, SOME_STRETCHED_PROGRAMS / programs)
        if smaller is None:
            return
        recorded = self.recorder.record(smaller, perform=False)
        if _programs(recorded.tape) <= MOST_STRETCHED_PROGRAMS:
            self.check_tape(recorded)
            self._submit(recorded, ("fresh",))

    def _try_other_weights(self) -> None:
        """Make the candidate's module again with other weights, where it has weights of its own."""
        known = self.task.parameters(0) if self.task.parameters is not None else {}
        if self._is_decided() or not self.seen or not known or not self.recorder.own_parameters:
            return
        first = self.seen[0]
        try:
            self.ask(lambda: self.recorder.load(self.main, seed=1), "loads")
            other = self.ask(lambda: self.recorder.record(first.trial, perform=False), "runs")
            refuse_derived_weights(first, other, list(known.values()))
        except Failure as failure:
            self._fail(first.trial, failure)

    def _note_untried(self, trial: Trial, why: str) -> None:
        sizes = ", ".join(f"{name}={size}" for name, size in trial.case.sizes.items())
        self.notes.append(f"not tried with {sizes}: {why[:160]}")

    def _try_configurations(self) -> None:
        """Try the other configurations of autotuners: on a GPU the fastest is used, whichever it is."""
        hidden = [one for one in self.seen if one.trial.hidden and one.trial in self.trials]
        if not self.seen:
            return
        trial = (hidden or self.seen)[0].trial
        count = max(one.tape["configurations"] for one in self.seen)
        numbers = list(range(1, count))
        if count > MOST_CONFIGURATIONS:
            numbers = random.Random(self.seed).sample(numbers, MOST_CONFIGURATIONS - 1)
            self.notes.append(f"{MOST_CONFIGURATIONS} of {count} configurations of the autotuner were judged")
        for number in numbers:
            self.progress(f"configuration {number + 1} of {count}")
            recorded = self._record(trial, configuration=number)
            if recorded is not None:
                self._submit(recorded, ("fresh",), f"configuration {number + 1} of the autotuner: ")
            if self._is_decided():
                return

    def _record(self, trial: Trial, **choices: Any) -> Recorded | None:
        """Record one trial and check its tapes; None where this fails."""
        try:
            recorded: Recorded = self.ask(lambda: self.recorder.record(trial, **choices), "runs")
            self.check_tape(recorded)
            if recorded.wide is not None:
                self.check_tape(recorded.wide)
        except Failure as failure:
            self._fail(trial, failure)
            return None
        return recorded

    def _fail(self, trial: Trial, failure: Failure) -> None:
        failed: Future[None] = Future()
        failed.set_exception(placed_at(failure, trial))
        self.judged.append((trial, failed))

    def _submit(self, recorded: Recorded, draws: tuple[Draw, ...], which: str = "") -> None:
        self.seen.append(recorded)
        self.judged.append((recorded.trial, self.pool.submit(self._replay, recorded, draws, which)))

    def _replay(self, recorded: Recorded, draws: tuple[Draw, ...], which: str) -> None:
        for draw in draws:
            try:
                with self._replay_lock:  # one child replays one trial at a time
                    self.replayer.judge(recorded, draw)
            except Failure as failure:
                reason = replace(failure.reason, draw=draw, message=which + failure.reason.message)
                raise Failure(reason, open=failure.open) from None
            except Ended as ended:
                message = f"a replay of the launches {ended}"
                raise Failure(Reason("timeout", "runs", message, "Is there a loop that never ends?")) from None

    def _tries_wide(self, trial: Trial) -> bool:
        return self.task.rules.wide and trial.dtype == self.trials[0].dtype and trial in self.trials

    def _draws(self, recorded: Recorded) -> tuple[Draw, ...]:
        """Return the draws to replay: larger inputs at every size of the first dtype, the others at the first size."""
        if not self._tries_wide(recorded.trial):
            return ("fresh",)
        if self.seen:
            return ("fresh", "wide")
        mirrored: tuple[Draw, ...] = ("mirrored",) if self.task.mirrors(recorded.inputs) else ()
        return ("fresh", "wide", "small", *mirrored)

    def _is_decided(self) -> bool:
        return any(one.done() and _is_decisive(one) for _, one in self.judged)


def _programs(tape: Mapping[str, Any]) -> int:
    """Return how many programs the launches of a tape have. A tape may be forged: then it has too many."""
    try:
        return sum(prod(int(size) for size in step["grid"]) for step in tape["steps"] if "kernel" in step)
    except (KeyError, TypeError, ValueError):
        return MOST_STRETCHED_PROGRAMS + 1


def _is_decisive(future: Future[None]) -> bool:
    error = future.exception()
    return isinstance(error, Failure) and not error.open and error.reason.stage in _DECISIVE
