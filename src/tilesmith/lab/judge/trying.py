"""Try a candidate: record one trial after the other, and replay each while the next is recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

from torch import Tensor, finfo

from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.constructor_work import refuse_derived_weights
from tilesmith.lab.judge.inverting import Start, turned_calls
from tilesmith.lab.judge.isolation.children import Ended
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder
from tilesmith.lab.judge.recording.circumstances import CIRCUMSTANCES, TURNED
from tilesmith.lab.judge.replayed import Replayer
from tilesmith.lab.judge.shared_values import BadOutput
from tilesmith.lab.judge.sizing import Sizes, computation_of, launch_form, programs_of
from tilesmith.lab.judge.task import SMALL, Draw, Task, Trial
from tilesmith.lab.judge.timing.gpu_stage import placed_at
from tilesmith.lab.judge.verdict import Reason

SOME_STRETCHED_PROGRAMS, MOST_STRETCHED_PROGRAMS = 300, 320
SECONDS_FOR_STRETCHED = 3.0
MOST_THRESHOLD_PROGRAMS = 8200
MOST_BLOCK_PROGRAMS = 60
MOST_SURVEYED_PROGRAMS = 1000
MOST_LEAVES = 4  # whose gradients are tried alone
MOST_CONFIGURATIONS = 256
MOST_PLANTED = 5  # trials with numbers of the candidate's text
FEW_ELEMENTS = 64  # of the largest input
MOST_CONFIGURATION_PROGRAMS = 400  # of all trials but the first
_RECORDED = ("wide", "spiked", "sparse")  # draws for which the candidate may launch something else
_DECISIVE = ("loads", "runs", "honest")  # a failure here ends the judgement


@dataclass
class Trying:
    """The trials of one judgement. `ask` turns the end of the candidate's process into a Failure."""

    task: Task
    trials: list[Trial]
    candidate: Candidate
    seed: int
    recorder: Recorder
    replayer: Replayer
    ask: Callable[[Callable[[], Any], str], Any]
    check_tape: Callable[[Recorded], None]
    start: Start  # of a new process with the candidate in it
    sizes: Sizes
    pool: ThreadPoolExecutor
    progress: Callable[[str], None]
    judged: list[tuple[Trial, Future[None]]] = field(default_factory=list)
    seen: list[Recorded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _different: set[str] = field(default_factory=set)  # configurations that were tried
    _replay_lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, first: Callable[[Recorded], None]) -> None:
        """Try everything until a failure decides. `first` gets the first record, whose kernels are compiled."""
        for trial in self._in_order():
            self.progress(f"{trial.case.name} {trial.dtype_name}")
            draws = self._draws(trial)
            recorded = self._record(trial, variants=[one for one in draws if one in _RECORDED])
            if recorded is not None:
                if not self.seen:
                    first(recorded)
                    draws += ("mirrored",) if self.task.mirrors(recorded.inputs) else ()
                self._submit(recorded, draws)
            if self._is_decided():
                return
        self._try_gradients()
        self._try_circumstances()
        self._try_turned()
        self._try_values()
        self._try_thresholds()
        self._survey()
        self._try_configurations(list(self.seen))
        first_stretched = len(self.seen)
        if self._try_stretched():
            self._try_configurations(self.seen[first_stretched:])
            self._try_other_weights()

    @property
    def planned(self) -> int:
        """The number of trials, also if a failure ended the judgement early."""
        return max(len(self.trials), len(self.judged))

    def _in_order(self) -> list[Trial]:
        """Return the trials with the largest given size first: it is compiled while the others run."""
        given = [trial for trial in self.trials if not trial.hidden]
        first = max(given, key=lambda one: self.task.floor_bytes(one) or 0, default=None)
        rest = [trial for trial in self.trials if trial is not first]
        return rest if first is None else [first, *rest]

    def _try_stretched(self) -> bool:
        """Try one large size after the other, where the interpreter can: it runs one program after the other.

        Return False where the candidate's process can do no more.
        """
        for trial in [] if self._is_decided() else self.task.stretched(self.seed):
            self.progress(trial.case.name)
            recorded = self._record_unknown(trial)
            programs = programs_of(recorded.tape) if recorded is not None else 0
            if recorded is None or programs > MOST_STRETCHED_PROGRAMS:
                smaller = self.task.shrunk(trial, SOME_STRETCHED_PROGRAMS / programs) if programs else None
                recorded = self._record_unknown(smaller) if smaller is not None else None
                if recorded is not None and programs_of(recorded.tape) <= MOST_STRETCHED_PROGRAMS:
                    self._submit(recorded, ("fresh",))
                continue
            started = time.monotonic()
            self.recorder.seconds = SECONDS_FOR_STRETCHED
            try:
                recorded = self._record_unknown(trial, perform=True)
            except Ended as ended:
                self._note_untried(trial, f"the candidate {ended}")
                return False
            self.recorder.seconds = None
            if recorded is not None and time.monotonic() - started < SECONDS_FOR_STRETCHED / 2:
                self._submit(recorded, ("fresh",))  # the replay traces accesses, and takes longer
        return not self._is_decided()

    def _record_unknown(self, trial: Trial, *, perform: bool = False) -> Recorded | None:
        """Record a size that a candidate may refuse; then a note says why it was not tried."""
        try:
            if perform:
                recorded = self.recorder.record(trial)
            else:
                recorded = self.ask(lambda: self.recorder.record(trial, perform=False), "runs")
            self.check_tape(recorded)
        except (Failure, BadOutput) as failure:
            if isinstance(failure, Failure) and failure.reason.kind not in ("exception", "bad-output"):
                self._fail(trial, failure)
            else:  # a candidate may say which sizes it does not take
                self._note_untried(trial, str(failure))
            return None
        return recorded

    def _try_thresholds(self) -> None:
        """Try size 1 and the sizes that stand in the candidate's text, while the interpreter can run the programs."""
        for trials, left in (
            (self.task.resized([1, *self.sizes.thresholds], self.seed), MOST_THRESHOLD_PROGRAMS),
            (self.task.resized(self.sizes.elements, self.seed, other=1), MOST_THRESHOLD_PROGRAMS),
            (self.task.resized(self.sizes.beyond_blocks, self.seed), MOST_BLOCK_PROGRAMS),
            *((self.task.resized([one], self.seed, other=one)[:1], 4 * one) for one in self.sizes.together),
        ):
            for trial in trials:
                if self._is_decided():
                    return
                self.progress(trial.case.name)
                recorded = self._record_unknown(trial)
                if recorded is not None and (programs := programs_of(recorded.tape)) <= left:
                    self._submit(recorded, ("fresh",))
                    left -= programs

    def _survey(self) -> None:
        """Record calls of many sizes. Try those that launch something else than the trials before."""
        known = {form for trial in {one.trial for one in self.seen} if (form := self._form_at(trial)) is not None}
        left = MOST_SURVEYED_PROGRAMS
        for trial in [] if self._is_decided() else self.task.surveyed(self.seed):
            form = self._form_at(trial)
            if form is None or form in known:
                continue
            known.add(form)
            recorded = self._record_unknown(trial)
            if recorded is not None and (programs := programs_of(recorded.tape)) <= left:
                self._submit(recorded, ("fresh",))
                left -= programs

    def _form_at(self, trial: Trial) -> str | None:
        """Return what a call without gradients launches; None where the candidate does not take the size."""
        try:
            return launch_form(self.ask(partial(self.recorder.glance, trial), "runs").tape)
        except Failure:
            return None

    def _try_gradients(self) -> None:
        """Try a call without gradients, and one with the gradient of each input alone."""
        first = next((one for one in self.seen if one.trial.hidden and one.gradients), None)
        leaves = list(first.gradients or ()) if first is not None else []
        for wanted in [[], *([one] for one in leaves if len(leaves) > 1)][: 1 + MOST_LEAVES]:
            if first is None or self._is_decided():
                return
            recorded = self._record(first.trial, leaves=wanted)
            if recorded is not None:
                which = f"with the gradient of {wanted[0]} alone: " if wanted else "without gradients: "
                self._submit(recorded, ("fresh",), which)

    def _usual(self) -> Recorded | None:
        """Return a call at a size that nobody gave; else the first."""
        return next((one for one in self.seen if one.trial.hidden), self.seen[0] if self.seen else None)

    def _try_circumstances(self) -> None:
        """Glance at a call in each circumstance. Try those that launch something else than an ordinary call."""
        first = self._usual()
        if first is None or self._is_decided():
            return
        trial = first.trial
        known = self._form_at(trial)
        for name in CIRCUMSTANCES:
            if self._is_decided():
                return
            try:
                recorded = self.ask(partial(self.recorder.glance, trial, name), "runs")
            except Failure:
                continue  # results that were not computed may have no meaning for the candidate
            if launch_form(recorded.tape) != known:
                self._try_otherwise(recorded, f"{name}: ", partial(self.recorder.glance, trial, name, perform=True))

    def _try_otherwise(self, recorded: Recorded, which: str, again: Callable[[], Recorded]) -> None:
        """Try a call that launches something else than an ordinary one. `again` makes it where the host reads."""
        try:
            if recorded.tape["host_reads"]:
                recorded = self.ask(again, "runs")
            self.check_tape(recorded)
            self._submit(recorded, ("fresh",), which)
        except Failure as failure:
            reason = replace(failure.reason, message=which + failure.reason.message)
            self._fail(recorded.trial, Failure(reason, open=failure.open))

    def _try_turned(self) -> None:
        """Invert conditions of the candidate's text. Try the calls that launch something else then."""
        first = self._usual()
        if first is None or self._is_decided():
            return
        try:
            for which, recorded in turned_calls(self.candidate, first.trial, self.start, self.ask):
                with suppress(Failure):  # where something is missing, PyTorch may compute instead
                    self.check_tape(recorded)
                    self._submit(recorded, ("fresh",), which)
        except Failure as failure:
            if failure.open:
                self._fail(first.trial, failure)
            else:
                self.notes.append(f"conditions of the text were not all inverted: {failure}")

    def _try_values(self) -> None:
        """Put the numbers of the candidate's text into inputs: a kernel may do something else there."""
        first, values, patterns = self._usual(), self.sizes.values, self.sizes.bit_patterns
        if first is None or not (values or patterns) or not self.task.rules.wide or self._is_decided():
            return
        shapes = [one.shape for one in first.inputs.values() if isinstance(one, Tensor) and one.dim()]
        rows = max((prod(one[:-1]) if len(one) > 1 else one[0] for one in shapes), default=1)
        starts = range(0, len(values), max(rows, 1))[:MOST_PLANTED]
        trials = [replace(first.trial, planted=tuple(values[start : start + max(rows, 1)])) for start in starts]
        tiny = sorted({one for one in values if finfo(first.trial.dtype).tiny / SMALL < one < SMALL})
        repeated = patterns * (1 + rows // max(1, len(patterns)))  # more values than rows
        trials += [replace(first.trial, planted=tuple(repeated))] if repeated else []
        trials += [replace(first.trial, scale=one) for one in tiny[:: max(1, len(tiny) - 1)]]
        for trial in trials:
            recorded = self._record(trial, leaves=())
            if recorded is not None:
                self._submit(recorded, ("planted",))

    def _try_other_weights(self) -> None:
        """Make the candidate's module again with other weights, where it has weights of its own."""
        known = self.task.parameters(0) if self.task.parameters is not None else {}
        if self._is_decided() or not self.seen or not known or not self.recorder.own_parameters:
            return
        first = self.seen[0]
        try:
            self.ask(lambda: self.recorder.load(self.candidate.main, seed=1), "loads")
            other = self.ask(lambda: self.recorder.record(first.trial, perform=False), "runs")
            refuse_derived_weights(first, other, list(known.values()))
        except Failure as failure:
            self._fail(first.trial, failure)

    def _note_untried(self, trial: Trial, why: str) -> None:
        sizes = ", ".join(f"{name}={size}" for name, size in trial.case.sizes.items())
        self.notes.append(f"not tried with {sizes}: {why[:160]}")

    def _try_configurations(self, places: Sequence[Recorded]) -> None:
        """Try the other configurations of autotuners: on a GPU the fastest is used, whichever it is.

        Each is tried in one trial, a hidden one of some size if it is offered there; in the others while time allows.
        """
        different, same, programs, untried = self._different, set[str](), 0, 0
        tuned = [one for one in places if len(one.tape["configurations"]) > 1]
        for first in sorted(tuned, key=_how_soon_tuned):
            if self._is_decided():
                return
            names = first.tape["configurations"]
            different.add(names[0])
            known = {computation_of(first.tape)}
            for number, name in enumerate(names[1:MOST_CONFIGURATIONS], 1):
                if name in same:
                    continue
                is_further = name in different
                if is_further and programs > MOST_CONFIGURATION_PROGRAMS:
                    untried += 1
                    continue
                self.progress(f"configuration {number + 1} of {len(names)}")
                recorded = self._record_configuration(first.trial, number)
                if self._is_decided():
                    return
                if recorded is None or (computation := computation_of(recorded.tape)) in known:
                    same |= set() if is_further else {name}  # the same program with other warps or stages
                    continue
                known.add(computation)
                different.add(name)
                programs += programs_of(recorded.tape) if is_further else 0
                which = f"configuration {number + 1} of the autotuner: "
                self._submit(recorded, ("wide", "fresh") if is_further else ("wide", "spiked", "fresh"), which)
        if untried:
            self.notes.append(f"{untried} pairs of a configuration and a further size or dtype were not tried")
        most = max(places, key=lambda one: len(one.tape["configurations"]), default=None)
        if most is not None and len(most.tape["configurations"]) > MOST_CONFIGURATIONS:
            self._leave_configurations_open(most)

    def _record_configuration(self, trial: Trial, number: int) -> Recorded | None:
        """Record one configuration without computing, unless the candidate reads what its kernels compute."""
        try:
            recorded = self.recorder.record(trial, perform=False, configuration=number)
            if not recorded.tape["host_reads"]:
                self.check_tape(recorded)
                return recorded
        except (Failure, BadOutput, Ended):
            pass  # results that were not computed may have no meaning for the candidate
        return self._record(trial, configuration=number)

    def _leave_configurations_open(self, recorded: Recorded) -> None:
        count = len(recorded.tape["configurations"])
        message = f"the autotuner has {count:,} configurations; {MOST_CONFIGURATIONS} were judged"
        advice = "Offer fewer configurations: any of them may be the fastest on some GPU."
        self._fail(recorded.trial, Failure(Reason("many-configurations", "right", message, advice), open=True))

    def _record(self, trial: Trial, **choices: Any) -> Recorded | None:
        """Record one trial and check its tapes; None where this fails."""
        try:
            recorded: Recorded = self.ask(lambda: self.recorder.record(trial, **choices), "runs")
            self.check_tape(recorded)
            for one in recorded.variants.values():
                self.check_tape(one)
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
                if recorded.circumstance.startswith(TURNED) and failure.reason.stage == "honest":
                    return  # likewise: its outputs are right
                reason = replace(failure.reason, draw=draw, message=which + failure.reason.message)
                raise Failure(reason, open=failure.open) from None
            except Ended as ended:
                message = f"a replay of the launches {ended}"
                raise Failure(Reason("timeout", "runs", message, "Is there a loop that never ends?")) from None

    def _draws(self, trial: Trial) -> tuple[Draw, ...]:
        """Return the draws to replay: larger inputs at every size of the first dtype, the others at two sizes."""
        if not self.task.rules.wide or trial.dtype != self.trials[0].dtype:
            return ("fresh",)
        if not self.seen:
            return ("fresh", "wide", "small", "spiked", "sparse")
        is_first_hidden = trial.hidden and not any(one.trial.hidden for one in self.seen)
        return ("fresh", "wide", "spiked", "sparse") if is_first_hidden else ("fresh", "wide")

    def _is_decided(self) -> bool:
        return any(one.done() and _is_decisive(one) for _, one in self.judged)


def _is_decisive(future: Future[None]) -> bool:
    error = future.exception()
    return isinstance(error, Failure) and not error.open and error.reason.stage in _DECISIVE


def _how_soon_tuned(recorded: Recorded) -> tuple[bool, bool, int]:
    """Return the order in which trials show configurations: many wrong ones are right for few elements."""
    elements = max((one.numel() for one in recorded.inputs.values() if isinstance(one, Tensor)), default=0)
    return elements < FEW_ELEMENTS, not recorded.trial.hidden, programs_of(recorded.tape)
