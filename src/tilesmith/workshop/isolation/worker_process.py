"""The child process in which learners' files run. The parent starts this file by its path, with a pipe's descriptor.

The child reads one JSON request after another and answers each. Damage by a learner's file stays inside the child.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: a learner's `import worker` must not find our module

import faulthandler
import json
import os
import signal
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.checking.verdict import Verdict
    from tilesmith.workshop.cuda.check import CudaCheck


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    # At the time limit, the parent asks for a traceback with this signal.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    # Import before the first request: the imports do not count as the file's time.
    from tilesmith.workshop.quizzes import answers  # noqa: F401

    warm = "warm" in sys.argv
    forks = _warm_up() if warm else False
    _send(pipe, ready=True, spent=warm and not forks)
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            break
        if forks:
            _answer_in_copy(request, pipe)
        else:
            _send(pipe, answer=_answered(request, pipe))
    os._exit(0)  # threads that a file left running must not keep the process alive


def _answer_in_copy(request: dict[str, Any], pipe: Connection) -> None:
    """Answer in a fork of this process: it starts at once, warm, and its file cannot change this process."""
    import torch

    copy = os.fork()
    if not copy:
        try:
            torch.set_num_threads(os.cpu_count() or 1)
            _send(pipe, process=os.getpid())
            _send(pipe, answer=_answered(request, pipe))
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    _, status = os.waitpid(copy, 0)
    if os.WIFSIGNALED(status):  # end in the same way, so that the parent can tell the learner
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    elif os.WEXITSTATUS(status):
        os._exit(os.WEXITSTATUS(status))


def _answered(request: dict[str, Any], pipe: Connection) -> dict[str, Any]:
    from tilesmith.spec import SpecError
    from tilesmith.workshop.checking.staged_check import StageFailure
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.course.exercise import ExerciseError
    from tilesmith.workshop.course.exercise_file import load_exercise
    from tilesmith.workshop.cuda.check import CudaCheck
    from tilesmith.workshop.quizzes.answers import compute_answers

    file = Path(request["file"])
    os.chdir(file.parent)
    try:
        exercise = load_exercise(Path(request["exercise"]))
        check: TritonCheck | CudaCheck | None = None
        if not exercise.is_only_questions:
            kind = CudaCheck if exercise.is_cuda else TritonCheck
            check = kind(exercise, file, entering=lambda stage: _send(pipe, stage=stage))
        verdict = check.verdict() if check is not None and request["check"] else None
        if isinstance(check, TritonCheck) and verdict is not None and "picture" in request:
            _draw(check, verdict, Path(request["picture"]))
        figures = _figures(check, verdict) if "picture" in request else {}
        asked = request["quiz"] and (verdict is None or verdict.passed)
        found = [asdict(one) for one in compute_answers(exercise, check)] if asked else None
    except (ExerciseError, SpecError, StageFailure) as error:
        return {"problem": str(error)}
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the learner's file may have closed the stream
                stream.flush()
    return {"verdict": verdict and verdict.as_json(), "quiz": found, "figures": figures}


def _warm_up() -> bool:
    """Check a model solution: the first check imports and initialises what later checks reuse.

    Return whether a fork of this process can run files. Beside a GPU it cannot: a fork has no access to CUDA.
    """
    import torch

    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.course.catalogue import BUILT_IN
    from tilesmith.workshop.course.exercise_file import load_exercise

    torch.set_num_threads(1)  # a fork does not copy OpenMP's threads, so there must be none
    exercise = load_exercise(BUILT_IN / "vector-add")
    TritonCheck(exercise, exercise.solution).verdict()
    return not torch.cuda.is_available()


def _figures(check: TritonCheck | CudaCheck | None, verdict: Verdict | None) -> dict[str, float]:
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.publishing.own_picture import figures_of_check

    passed = verdict is not None and verdict.passed
    return figures_of_check(check) if passed and isinstance(check, TritonCheck) else {}


def _draw(check: TritonCheck, verdict: Verdict, page: Path) -> None:
    from tilesmith.workshop.publishing.own_picture import picture_of_check

    picture = picture_of_check(check, verdict)
    if picture:
        page.write_text(picture, encoding="utf-8")


def _send(pipe: Connection, **message: Any) -> None:
    pipe.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
