"""The process that has imported PyTorch and Triton, and forks a new process for each learner's file.

The parent starts this file by its path, with a socket's descriptor. This process never runs a learner's code, so no
file changes how the next one is checked. What the forked process says is only a claim: a file that passes is judged
again by `outside_verdict.py`. This process ends what a file leaves running, also when the parent is gone.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: a learner's `import worker` must not find our module

import ctypes
import faulthandler
import os
import select
import signal
import socket
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tilesmith.workshop.checking.program_check import ProgramCheck
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.checking.verdict import Verdict
    from tilesmith.workshop.cuda.check import CudaCheck

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGKILL = int(signal.SIGKILL)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # after initialising CUDA, no fork could use the GPU
    # Import before the first request: the imports do not count as the file's time.
    import torch

    from tilesmith import messages
    from tilesmith.workshop.isolation.outside_verdict import objection  # noqa: F401
    from tilesmith.workshop.quizzes import answers  # noqa: F401

    # A fork does not copy OpenMP's threads, so there must be none. In a fork, one thread takes less time than several:
    # the tensors of exercises are small.
    torch.set_num_threads(1)
    if "warm" in sys.argv:
        _warm_up()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process, which can end them
    server = _Server(channel)
    threading.Thread(target=server.end_with_the_parent, daemon=True).start()
    messages.send(channel, {"ready": True})
    while True:
        try:
            request = messages.receive(channel)
        except messages.Closed:
            server.end()
        messages.send(channel, {"answer": server.answer(request)})


class _Server:
    """Forks a process for each request, and a nursery of the judge beside them."""

    def __init__(self, channel: socket.socket) -> None:
        from tilesmith.lab.judge import Judge
        from tilesmith.lab.judge.isolation.children import Nursery
        from tilesmith.lab.judge.isolation.nursery import serve

        self._channel = channel
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._nursery = os.fork()
        if self._nursery == 0:
            ours.close()
            channel.close()
            _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
            serve(theirs)
        theirs.close()
        self._children = Nursery(ours)
        self._judge = Judge(self._children)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Check one file in a fork of this process, and ask the judge about a file that passes."""
        from tilesmith import messages
        from tilesmith.toolchain.compiler import prepare

        if request["file"].endswith(".py"):
            prepare()  # here, else the check and the compilation of each file would hash Triton's files again
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            self._channel.close()
            _check_and_exit(request, theirs)
        theirs.close()
        if request["check"] and (os.cpu_count() or 1) > 1 and os.fork() == 0:
            ours.close()
            self._channel.close()
            _compile_and_exit(request)
        try:
            messages.send(self._channel, {"pid": child})
            told = self._told(ours, float(request["seconds"]), child)
        finally:
            ours.close()
            self._end_others()
        if "ended" in told or not _claims_success(told):
            return told
        messages.send(self._channel, {"judging": True})
        return self._judged(request, told)

    def _told(self, channel: socket.socket, seconds: float, child: int) -> dict[str, Any]:
        """Return the answer of the forked process, or how it ended. Its messages are not trusted."""
        from tilesmith import messages
        from tilesmith.workshop.course.exercise import STAGES

        deadline = time.monotonic() + seconds
        while True:
            try:
                message = messages.receive(channel, deadline)
            except messages.TooLate:
                return {"ended": f"was still running after {seconds:g} s. Is there a loop that never ends?"}
            except messages.Garbage as error:
                return {"ended": f"sends {error} in place of an answer."}
            except messages.Closed:
                return {"ended": _how_ended(child)}
            if message.get("stage") in STAGES:
                messages.send(self._channel, {"stage": message["stage"]})
            elif "answer" in message:
                return _validated(message["answer"])
            else:
                return {"ended": "sends something other than an answer."}

    def _judged(self, request: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
        from tilesmith.workshop.course.exercise_file import load_exercise
        from tilesmith.workshop.isolation.outside_verdict import objection, program_objection

        exercise = load_exercise(Path(request["exercise"]))
        file = Path(request["file"])
        if not (exercise.has_kernels or exercise.is_program):
            return told
        try:
            if exercise.is_program:
                found = program_objection(self._children, exercise, file)
            else:
                found = objection(self._judge, exercise, file)
        except Exception as error:
            return {"ended": f"could not be judged outside of its process: {type(error).__name__}: {error}"}
        return told if found is None else {"verdict": found.as_json(), "quiz": None, "figures": {}}

    def end_with_the_parent(self) -> None:
        """Wait until the parent's end of the socket is closed, however the parent ended."""
        watched = select.poll()
        watched.register(self._channel, getattr(select, "POLLRDHUP", select.POLLHUP))
        watched.poll()
        self.end()

    def end(self) -> NoReturn:
        self._end_others()
        os._exit(0)

    def _end_others(self) -> None:
        """End all descendants but the nursery."""
        for _ in range(20):  # a process that is ended may have started another
            found = descendants(os.getpid(), leaving=self._nursery)
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not found:
                return
            time.sleep(0.005)


def descendants(root: int, leaving: int | None = None) -> list[int]:
    """Return the processes that descend from a process, except one and its own descendants."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [one for one in parents.get(root, []) if one != leaving]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += parents.get(one, [])
    return found


def _check_and_exit(request: dict[str, Any], channel: socket.socket) -> NoReturn:
    """In the forked process: check the file, answer, end. Threads that the file left running end too."""
    from tilesmith import messages

    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    # At the time limit, the parent asks for a traceback with this signal.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        messages.send(channel, {"answer": _checked(request, channel)})
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _checked(request: dict[str, Any], channel: socket.socket) -> dict[str, Any]:
    from tilesmith import messages
    from tilesmith.spec import SpecError
    from tilesmith.workshop.checking.program_check import ProgramCheck
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
        check: TritonCheck | CudaCheck | ProgramCheck | None = None
        if not exercise.is_only_questions:
            kind = CudaCheck if exercise.is_cuda else ProgramCheck if exercise.is_program else TritonCheck
            check = kind(exercise, file, entering=lambda stage: messages.send(channel, {"stage": stage}))
        verdict = check.verdict() if check is not None and request["check"] else None
        if isinstance(check, TritonCheck | CudaCheck) and verdict is not None and "picture" in request:
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


def _compile_and_exit(request: dict[str, Any]) -> NoReturn:
    """In a process beside the check: compile for it, since compiling takes half of a check's time."""
    import torch

    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.course.exercise_file import load_exercise

    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the check shows what the file prints
        os.dup2(nothing, stream)
    torch.set_num_threads(1)
    with suppress(BaseException):  # the check says what is wrong
        file, exercise = Path(request["file"]), load_exercise(Path(request["exercise"]))
        os.chdir(file.parent)
        if exercise.has_kernels:
            TritonCheck(exercise, file).compile_ahead()
    os._exit(0)


def _warm_up() -> None:
    """Check and draw a model solution: the first check initialises what later checks reuse. Not on the GPU."""
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.course.catalogue import BUILT_IN
    from tilesmith.workshop.course.exercise_file import load_exercise
    from tilesmith.workshop.publishing.own_picture import picture_of_check

    exercise = replace(load_exercise(BUILT_IN / "vector-add"), timed=())
    check = TritonCheck(exercise, exercise.solution)
    picture_of_check(check, check.verdict())


def _figures(check: TritonCheck | CudaCheck | ProgramCheck | None, verdict: Verdict | None) -> dict[str, float]:
    from tilesmith.workshop.checking.triton_check import TritonCheck
    from tilesmith.workshop.publishing.own_picture import figures_of_check

    passed = verdict is not None and verdict.passed
    return figures_of_check(check) if passed and isinstance(check, TritonCheck) else {}


def _draw(check: TritonCheck | CudaCheck, verdict: Verdict, page: Path) -> None:
    from tilesmith import storage
    from tilesmith.workshop.cuda.check import CudaCheck
    from tilesmith.workshop.publishing.cuda_picture import picture_of_cuda_check
    from tilesmith.workshop.publishing.own_picture import picture_of_check

    if isinstance(check, CudaCheck):
        picture = picture_of_cuda_check(check, verdict)
    else:
        picture = picture_of_check(check, verdict)
    if picture:
        storage.write_atomically(page, picture)


def _claims_success(told: dict[str, Any]) -> bool:
    return bool(told.get("verdict") and told["verdict"]["passed"])


def _validated(answer: Any) -> dict[str, Any]:
    """Return an answer that has the parts of one; otherwise that the file sent something else."""
    from tilesmith.workshop.checking.verdict import QuestionAnswers, Verdict

    try:
        if "problem" in answer:
            return {"problem": str(answer["problem"])[:2000]}
        verdict = Verdict.from_json(answer["verdict"]).as_json() if answer["verdict"] is not None else None
        quiz = None if answer["quiz"] is None else [asdict(QuestionAnswers(**one)) for one in answer["quiz"]]
        figures = {str(name): float(value) for name, value in answer["figures"].items()}
        if verdict is not None and not (type(verdict["passed"]) is bool and isinstance(verdict["message"], str)):
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        return {"ended": "sends something other than an answer."}
    return {"verdict": verdict, "quiz": quiz, "figures": figures}


def _how_ended(child: int) -> str:
    try:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return "stopped answering."
    if code >= 0:
        return f"ended the whole process with status {code}, as os._exit does. Let the function return instead."
    return f"was ended by {signal.Signals(-code).name}."


def _prctl(option: int, value: int) -> None:
    with suppress(Exception):  # Linux only
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
