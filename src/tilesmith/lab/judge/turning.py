"""Turn truth values of a candidate's text over, one at a time, and try what its calls launch then."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed
from tilesmith.lab.judge.laying import BadOutput
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder, steps_of
from tilesmith.lab.judge.recording.circumstances import TURNED
from tilesmith.lab.judge.recording.forcing import expressions
from tilesmith.lab.judge.task import Trial
from tilesmith.lab.judge.verdict import Reason

MOST_TURNED = 200
SECONDS_FOR_CALL = 3.0
_LAST = ("timeout", "ended")  # reasons after which a process answers no more
Start = Callable[[], AbstractContextManager[Recorder]]


def turned_calls(
    candidate: Candidate, trial: Trial, start: Start, ask: Callable[[Callable[[], Recorded], str], Recorded]
) -> Iterator[tuple[str, Recorded]]:
    """Yield calls that launch something else with a truth value turned over, and say which.

    What a candidate asks while it is imported is turned over in an import of its own. `start` gives a new process with
    the candidate in it, its truth values marked. Raises Failure, with `open` where there are too many truth values.
    """
    known = _expressions(candidate)
    if not known:
        return
    with start() as recorder:
        recorder.seconds = SECONDS_FOR_CALL
        at_import = recorder.asked
        for _ in range(2):  # what a first call keeps is kept then
            plain = _glance(recorder, trial, "", ask)
        if plain is None:
            return
        in_call = [one for one in recorder.asked if one in known]
        at_import = [one for one in at_import if one in known and one not in in_call]
        if len(in_call) + len(at_import) > MOST_TURNED:
            message = (
                f"the candidate's Python asks for {len(in_call) + len(at_import)} truth values that do not depend on"
            )
            advice = f"Ask for fewer: {MOST_TURNED} are turned over, to see whether the outputs stay right."
            raise Failure(Reason("many-conditions", "right", f"{message} its arguments", advice), open=True)
        for name in in_call:
            yield from _told(_glance(recorder, trial, f"{TURNED}{name}", ask), plain, known[name])
        for name in at_import:
            with suppress(Failure):
                recorder.load(candidate.main, turned=name)
                _glance(recorder, trial, "", ask)
                yield from _told(_glance(recorder, trial, TURNED, ask), plain, known[name])


def _told(found: Recorded | None, plain: Recorded, expression: ast.expr) -> Iterator[tuple[str, Recorded]]:
    if found is not None and steps_of(found.tape) != steps_of(plain.tape):
        yield f"where `{ast.unparse(expression)[:80]}` of line {expression.lineno} is otherwise: ", found


def _glance(
    recorder: Recorder, trial: Trial, circumstance: str, ask: Callable[[Callable[[], Recorded], str], Recorded]
) -> Recorded | None:
    """Return one call's record; None where the candidate fails: a turned truth value may have no meaning for it."""
    try:
        found = ask(lambda: recorder.glance(trial, circumstance), "runs")
        if not found.tape["host_reads"]:
            return found
        return ask(lambda: recorder.glance(trial, circumstance, perform=True), "runs")
    except BadOutput:
        return None
    except Failure as failure:
        if failure.reason.kind in _LAST:
            raise
        return None


def _expressions(candidate: Candidate) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for file, content in candidate.files.items():
        if file.endswith(".py"):
            with suppress(*UNREADABLE):
                found |= expressions(file, parsed(content))
    return found
