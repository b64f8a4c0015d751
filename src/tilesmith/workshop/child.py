"""The process in which learners' files run. Started by its path, with the number of a pipe.

It takes one request after another as JSON and answers each: what a learner's file does to this process is felt by
nobody else.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: a learner's file must not find our modules under the names of its own

import faulthandler
import json
import os
import signal
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    # When time is up, the parent asks where the file has got to.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    from tilesmith.workshop import answers  # noqa: F401  # now: starting up does not count as the file's time

    _send(pipe, ready=True)
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            break
        _send(pipe, answer=_answered(request, pipe))
    os._exit(0)  # whatever a file left behind, such as threads, must not keep the process


def _answered(request: dict[str, Any], pipe: Connection) -> dict[str, Any]:
    from tilesmith.spec import SpecError
    from tilesmith.workshop.answers import answers
    from tilesmith.workshop.cuda_check import CudaCheck, CudaFailure
    from tilesmith.workshop.exercise import ExerciseError, load
    from tilesmith.workshop.stages import Check, Failure

    file = Path(request["file"])
    os.chdir(file.parent)
    try:
        exercise = load(Path(request["exercise"]))
        check: Check | CudaCheck | None = None
        if not exercise.is_only_questions:
            kind = CudaCheck if exercise.is_cuda else Check
            check = kind(exercise, file, entering=lambda stage: _send(pipe, stage=stage))
        verdict = check.verdict() if check is not None and request["check"] else None
        asked = request["quiz"] and (verdict is None or verdict.passed)
        found = [asdict(one) for one in answers(exercise, check)] if asked else None
    except (ExerciseError, SpecError, Failure, CudaFailure) as error:
        return {"problem": str(error)}
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the file may have closed it
                stream.flush()
    return {"verdict": verdict and verdict.as_json(), "quiz": found}


def _send(pipe: Connection, **message: Any) -> None:
    pipe.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
