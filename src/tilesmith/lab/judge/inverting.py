"""Invert conditions of a candidate's text, one at a time, and try what its calls launch then."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder, steps_of
from tilesmith.lab.judge.recording.circumstances import TURNED
from tilesmith.lab.judge.recording.forcing import expressions
from tilesmith.lab.judge.shared_values import BadOutput
from tilesmith.lab.judge.task import Trial
from tilesmith.lab.judge.verdict import Reason

MOST_TURNED = 200
SECONDS_FOR_CALL = 3.0
_LAST = ("timeout", "ended")  # reasons after which a process answers no more
Ask = Callable[[Callable[[], Any], str], Any]
Start = Callable[[], AbstractContextManager[Recorder]]


def turned_calls(candidate: Candidate, trial: Trial, start: Start, ask: Ask) -> Iterator[tuple[str, Recorded]]:
    """Yield calls that launch something else with a condition inverted, and say which.

    What a candidate asks while it is imported is inverted in an import of its own. `start` gives a new process with
    the candidate in it, its conditions marked. Raises Failure, with `open` where there are too many conditions.
    """
    known = _expressions(candidate)
    if not known:
        return
    with start() as recorder:
        recorder.seconds = SECONDS_FOR_CALL
        at_import = recorder.asked
        _glance(recorder, trial, "", ask)  # what a first call keeps is kept then
        before, plain = _glance(recorder, trial, "", ask), _glance(recorder, trial, "", ask)
        if plain is None or before is None:
            return
        if steps_of(before.tape) != steps_of(plain.tape):
            yield from (("in one of equal calls: ", one) for one in (before, plain))
        in_call = [one for one in recorder.asked if one in known]
        at_import = [one for one in at_import if one in known and one not in in_call]
        if (count := len(in_call) + len(at_import)) > MOST_TURNED:
            message = f"the candidate's Python asks for {count} conditions that do not depend on its arguments"
            advice = f"Ask for fewer: {MOST_TURNED} are inverted, to see whether the outputs stay right."
            raise Failure(Reason("many-conditions", "right", message, advice), open=True)
        for name in in_call:
            yield from _told(_glance(recorder, trial, f"{TURNED}{name}", ask), plain, known[name])
        for name in at_import:
            if _is_loaded(recorder, candidate.main, name, ask):
                _glance(recorder, trial, "", ask)
                yield from _told(_glance(recorder, trial, TURNED, ask), plain, known[name])


def _is_loaded(recorder: Recorder, main: str, turned: str, ask: Ask) -> bool:
    """Import the candidate again with a condition inverted; False where that fails."""
    try:
        ask(lambda: recorder.load(main, turned=turned), "loads")
    except Failure as failure:
        if failure.reason.kind in _LAST:
            raise
        return False
    return True


def _told(found: Recorded | None, plain: Recorded, expression: ast.expr) -> Iterator[tuple[str, Recorded]]:
    if found is not None and steps_of(found.tape) != steps_of(plain.tape):
        yield f"where `{ast.unparse(expression)[:80]}` of line {expression.lineno} is otherwise: ", found


def _glance(recorder: Recorder, trial: Trial, circumstance: str, ask: Ask) -> Recorded | None:
    """Return one call's record; None where the candidate fails: a turned condition may have no meaning for it."""
    try:
        found: Recorded = ask(lambda: recorder.glance(trial, circumstance), "runs")
        if found.tape["host_reads"]:
            found = ask(lambda: recorder.glance(trial, circumstance, perform=True), "runs")
    except BadOutput:
        return None
    except Failure as failure:
        if failure.reason.kind in _LAST:
            raise
        return None
    return found


def _expressions(candidate: Candidate) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for file, content in candidate.files.items():
        if file.endswith(".py"):
            with suppress(*UNREADABLE):
                found |= expressions(file, parsed(content))
    return found
