"""Runs learners' files in a child process under limits of time and memory.

A file that ends the child becomes a failed verdict of one or two lines.
"""

from __future__ import annotations

import codecs
import importlib.util
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tilesmith import messages
from tilesmith.workshop.checking.verdict import QuestionAnswers, Verdict
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.cuda.check import SECONDS_IN_ALL
from tilesmith.workshop.isolation import worker_process
from tilesmith.workshop.isolation.process_use import OwnTime, resident_bytes

GIGABYTE = 1 << 30
SECONDS_TO_START = 600.0  # for importing torch and Triton from a slow disk
SECONDS_FOR_QUESTIONS = 600.0
SECONDS_TO_JUDGE = 900.0
PATIENCE = 10  # how many times longer a file on a busy machine may take
SECONDS_BETWEEN_LOOKS = 0.2  # at memory and time
POLL_SECONDS = 0.05
MOST_PRINTED = 1 << 16
SECONDS_FOR_TRACEBACK = 1.0
SECONDS_TO_SAVE = 0.3
# What MLIR prints where a pass fails. The verdict has the reason and its line.
_COMPILERS_PASSES = re.compile(
    r"^\S+\.py:\d+:\d+: error: .*?: note: Pipeline failed while executing[^\n]*\n?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Limits:
    """The time and memory that a learner's file may use. `seconds` are its own: see `OwnTime`."""

    seconds: float = 60.0
    gigabytes: float = 4.0


LIMITS = Limits()


@dataclass(frozen=True)
class Outcome:
    """The verdict of a check, the output of the file, and the answers of the quiz if they were requested."""

    verdict: Verdict
    printed: str = ""
    quiz: tuple[QuestionAnswers, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)  # of a solved exercise, where a picture was requested


class _NoAnswer(Exception):
    """The file's process ended without an answer. The message completes a sentence that begins with "Your file"."""

    def __init__(self, message: str, *, worker_lives: bool = False) -> None:
        super().__init__(message)
        self.worker_lives = worker_lives


class Worker:
    """A child process that checks one file after another. A new child replaces one that a file has ended."""

    def __init__(self, limits: Limits = LIMITS, *, warm: bool = False) -> None:
        """`warm`: the child checks a model solution before its first request, so that every check starts at once."""
        self._limits = limits
        self._warm = warm
        self._process: _Process | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the child now, because its imports take seconds. Replace a child that ended while it was idle."""
        if self._process is not None and self._process.has_ended:
            self.close()
        if self._process is None:
            _require_packages("torch", "triton")
            self._process = _Process(self._warm)

    @property
    def process_id(self) -> int | None:
        """Return the id of the child's process, if there is one."""
        return self._process.id if self._process is not None else None

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def check(
        self,
        exercise: Exercise,
        file: Path,
        *,
        quiz: bool = False,
        entering: Callable[[str], None] = lambda stage: None,
        picture: Path | None = None,
    ) -> Outcome:
        """Check a copy of the file. Restore the file if running the copy deleted it.

        `picture` is the path for the inspect page of the file; no page is written where no kernel ran.
        """
        answer, printed = self._ask(exercise, file, check=True, quiz=quiz, entering=entering, picture=picture)
        if isinstance(answer, Verdict):
            return Outcome(answer, printed)
        found = tuple(QuestionAnswers(**one) for one in answer["quiz"] or ())
        verdict = Verdict.from_json(answer["verdict"])
        return Outcome(
            replace(verdict, message=without_control_characters(verdict.message)),
            printed,
            found,
            answer.get("figures", {}),
        )

    def quiz(self, exercise: Exercise, file: Path | None) -> tuple[QuestionAnswers, ...]:
        """Return the answers to the exercise's questions for this file. Raises ExerciseError where there are none."""
        answer, _ = self._ask(exercise, file, check=False, quiz=True, entering=lambda stage: None)
        if isinstance(answer, Verdict):
            raise ExerciseError(answer.message)
        return tuple(QuestionAnswers(**one) for one in answer["quiz"])

    def _ask(
        self,
        exercise: Exercise,
        file: Path | None,
        *,
        check: bool,
        quiz: bool,
        entering: Callable[[str], None],
        picture: Path | None = None,
    ) -> tuple[dict[str, Any] | Verdict, str]:
        content = file.read_bytes() if file is not None else b""
        with tempfile.TemporaryDirectory(prefix="tilesmith-", ignore_cleanup_errors=True) as scratch:
            copy = Path(scratch).resolve() / exercise.id / exercise.file_name
            copy.parent.mkdir()
            copy.write_bytes(content.removeprefix(codecs.BOM_UTF8))
            self.start()
            assert self._process is not None
            request = {"exercise": str(exercise.folder.resolve()), "file": str(copy), "check": check, "quiz": quiz}
            request |= {"picture": str(picture.resolve())} if picture is not None else {}
            stages = ["parses"]

            def entered(stage: str) -> None:
                stages.append(stage)
                entering(stage)

            try:
                answer = self._process.answer(request, self._limits_for(exercise, file), entered)
                if "lost" in answer:  # the process died before it began: not the file's fault, so try another
                    self.close()
                    self._process = _Process(self._warm)
                    answer = self._process.answer(request, self._limits_for(exercise, file), entered)
                if "lost" in answer:
                    raise _NoAnswer(answer["lost"])
            except _NoAnswer as ended:
                printed = self._process.printed()
                if not ended.worker_lives:
                    self.close()
                stage = "runs" if stages[-1] in ("parses", "compiles") else stages[-1]
                return Verdict(
                    exercise.id, False, stage, _with_harm(f"Your file {ended}", copy, file, content)
                ), printed
            printed = self._process.printed()
            harm = _harm(copy, file, content)
        if "problem" in answer:
            raise ExerciseError(answer["problem"])
        if harm and answer["verdict"] is not None:
            self.close()
            return Verdict(exercise.id, False, "runs", harm), printed
        return answer, printed

    def _limits_for(self, exercise: Exercise, file: Path | None) -> Limits:
        """Return the limits for a request. The exercise's own code may take longer, and so may a C++ compiler.

        A check in CUDA limits each of its compilations and runs itself, so this limit is the sum of all of them.
        """
        if file is None:
            return replace(self._limits, seconds=SECONDS_FOR_QUESTIONS)
        return (
            replace(self._limits, seconds=self._limits.seconds + SECONDS_IN_ALL) if exercise.is_cuda else self._limits
        )


class _Process:
    """The process that forks one for each file; its output is collected, and its whole session ends with it."""

    def __init__(self, warm: bool = False) -> None:
        self._channel, childs_end = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, worker_process.__file__, str(childs_end.fileno()), *(["warm"] if warm else [])],
            pass_fds=[childs_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # in every thread: a fork would wait for OpenMP's threads
            start_new_session=True,
        )
        childs_end.close()
        self._ready = False
        self._bytes_at_first = 0
        self._checking: int | None = None  # the process of the learner's file
        self._time = OwnTime()
        self._output = bytearray()
        threading.Thread(target=self._collect_output, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def id(self) -> int:
        return self._process.pid

    def answer(self, request: dict[str, Any], limits: Limits, entering: Callable[[str], None]) -> dict[str, Any]:
        """Send a request and wait for the answer; `lost` if the process dies first. Raises _NoAnswer if none comes."""
        self._checking = None
        try:
            return self._answered(request, limits, entering)
        except _NoAnswer as ended:
            if self._checking is None and self.has_ended:
                return {"lost": str(ended)}
            raise

    def _answered(self, request: dict[str, Any], limits: Limits, entering: Callable[[str], None]) -> dict[str, Any]:
        if not self._ready:
            self._message(time.monotonic() + SECONDS_TO_START, limits)
            self._ready = True
            self._bytes_at_first = resident_bytes(self._process.pid)  # PyTorch and Triton, not the file's own
        self._output.clear()
        # The process has its own limit, a little later, for the case that this one is gone.
        with suppress(BrokenPipeError):
            messages.send(self._channel, {**request, "seconds": PATIENCE * limits.seconds + SECONDS_FOR_TRACEBACK + 1})
        deadline = time.monotonic() + PATIENCE * limits.seconds
        self._time = OwnTime()
        while True:
            message = self._message(deadline, limits)
            if "pid" in message:
                self._checking = message["pid"]
            elif "judging" in message:
                self._checking, deadline = None, time.monotonic() + SECONDS_TO_JUDGE
            elif "stage" in message:
                entering(message["stage"])
            else:
                answer: dict[str, Any] = message["answer"]
                if "ended" in answer:
                    raise _NoAnswer(answer["ended"], worker_lives=True)
                return answer

    def printed(self) -> str:
        """Return the output of the file without control characters and without that of Triton's compiler."""
        time.sleep(POLL_SECONDS)  # the last output may still be in the pipe
        return _COMPILERS_PASSES.sub("", without_control_characters(bytes(self._output).decode(errors="replace")))

    def end(self) -> None:
        for process in [*worker_process.descendants(self._process.pid), self._process.pid]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._channel.close()

    def _message(self, deadline: float, limits: Limits) -> dict[str, Any]:
        looked = 0.0
        while not select.select([self._channel], [], [], POLL_SECONDS)[0]:
            now = time.monotonic()
            is_late = now > deadline
            if self._checking is not None and now > looked + SECONDS_BETWEEN_LOOKS:
                looked = now
                running = [self._checking, *worker_process.descendants(self._checking)]
                is_late = is_late or self._time.spent(running) > limits.seconds
                if self._bytes_taken(self._checking) > limits.gigabytes * GIGABYTE:
                    raise _NoAnswer(f"took more than {limits.gigabytes:g} GB of memory{self._current_line()}.")
            if is_late:
                where = self._current_line()
                raise _NoAnswer(
                    f"was still running after {limits.seconds:g} s{where}. Is there a loop that never ends?"
                )
        try:
            return messages.receive(self._channel, deadline + SECONDS_TO_START)
        except (messages.Closed, messages.Garbage, messages.TooLate, OSError):
            raise _NoAnswer(_reason_for_exit(self._process)) from None

    def _bytes_taken(self, process: int) -> int:
        """Return the memory of the learner's process beyond what it had at first, and of all that it started."""
        others = sum(map(resident_bytes, worker_process.descendants(process)))
        return max(0, resident_bytes(process) - self._bytes_at_first) + others

    def _current_line(self) -> str:
        """Return the line of the learner's file that the child is executing."""
        if self._checking is None:
            return ""
        self._output.clear()
        with suppress(ProcessLookupError):
            os.kill(self._checking, signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS_FOR_TRACEBACK
        while time.monotonic() < deadline and b"most recent call first" not in self._output:
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        trace = re.findall(
            r'File "[^"]*tilesmith-[^"]*/([^/"]+)", line (\d+)', bytes(self._output).decode(errors="replace")
        )
        self._output.clear()
        return f", at {trace[0][0]}:{trace[0][1]}" if trace else ""

    def _collect_output(self) -> None:
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read1(MOST_PRINTED):  # type: ignore[attr-defined]  # a buffered reader
            self._output += chunk[: max(0, MOST_PRINTED - len(self._output))]


def without_control_characters(text: str) -> str:
    """Return text without escape sequences and other control characters."""
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)", "", text)
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable())


def _with_harm(message: str, copy: Path, file: Path | None, content: bytes) -> str:
    harm = _harm(copy, file, content)
    return f"{message}\n{harm}" if harm else message


def _harm(copy: Path, file: Path | None, content: bytes) -> str:
    """Return how the file deleted itself or its folder, and restore it; "" where it did not."""
    if file is not None and not _is_there(file):
        # Never overwrite: the learner may have saved the file in the meantime.
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), open(file, "xb") as restored:
            restored.write(content)
        return (
            f"{file.name} was deleted or renamed during the check: by your file itself, or by another program. "
            f"The check restored {file.name}."
        )
    if not copy.is_file():
        return (
            "Your file deletes the folder it is in. The check runs a copy, so your work is safe. Remove the deletion."
        )
    return ""


def _is_there(file: Path) -> bool:
    """Return whether the file exists. Some editors delete a file before they save it, so look twice."""
    if not file.exists():
        time.sleep(SECONDS_TO_SAVE)
    return file.exists()


def _require_packages(*names: str) -> None:
    """Raise ExerciseError where a package is missing. The child would end at its first import."""
    for name in names:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ExerciseError(f"a check needs {name}, which is not installed; `tilesmith doctor` says how to get it")


def _reason_for_exit(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(SECONDS_TO_START)
    except subprocess.TimeoutExpired:
        return "stopped answering."
    if status >= 0:
        return f"ended the whole process with status {status}, as os._exit does. Let the function return instead."
    return f"was ended by {signal.Signals(-status).name}."
