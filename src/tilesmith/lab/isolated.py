"""Run code that may crash, hang or take all memory in a child process, and say how it ended.

    for message in messages(target, argument, limits=Limits(seconds=60)):
        …

`target(send, argument)` runs in the child; the loop sees everything that it sends. If the child does not end by itself,
the loop raises `ChildEnded` with the reason in words.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

Send = Callable[[Any], None]
POLL_SECONDS = 0.05
SECONDS_TO_END = 10.0
SECONDS_TO_ANSWER = 2.0
PLACE_SIGNAL = signal.SIGUSR1
_PACKAGE = Path(__file__).parents[1]
_NOT_OF_THE_USER = (
    "<",  # code without a file
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{_PACKAGE / room}{os.sep}" for room in ("lab", "toolchain", "cli")),
)
MOST_OF_MEMORY = 0.8


@dataclass(frozen=True)
class Limits:
    """When to end a child: seconds without a message, and bytes of memory."""

    seconds: float = 300.0
    bytes: int = 0  # 0: most of the machine's memory


@dataclass(frozen=True)
class Printed:
    """Text that the child wrote to its standard output or error."""

    text: str


class ChildEnded(Exception):
    """The child ended before its work. The message continues a sentence: "ended its process with status 7"."""


def messages(target: Callable[..., None], *arguments: Any, limits: Limits | None = None) -> Iterator[Any]:
    """Run `target(send, *arguments)` in a child process. Yield what it sends, and what it prints as `Printed`."""
    limits = limits or Limits()
    # A fork starts at once, but cannot use CUDA after its parent has.
    method = "fork" if hasattr(os, "fork") and sys.platform == "linux" and not torch.cuda.is_initialized() else "spawn"  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(theirs, target, arguments), daemon=True)  # type: ignore[attr-defined]  # of every context
    sys.stdout.flush()
    sys.stderr.flush()
    child.start()
    theirs.close()
    try:
        yield from _received(ours, child, limits)
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()


def _received(pipe: Connection, child: Any, limits: Limits) -> Iterator[Any]:
    most_bytes = limits.bytes or int(MOST_OF_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    deadline = time.monotonic() + limits.seconds
    while True:
        while not pipe.poll(POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ChildEnded(f"did not end within {limits.seconds:g} s{_place(pipe, child)}")
            if _resident_bytes(child.pid) > most_bytes:
                raise ChildEnded(f"used more than {most_bytes / 2**30:.3g} GiB of memory")
        try:
            message = pipe.recv()
        except (EOFError, ConnectionResetError):
            child.join(SECONDS_TO_END)
            raise ChildEnded(_end_in_words(child.exitcode)) from None
        except Exception as error:  # a message that somebody else wrote to the pipe
            raise ChildEnded(f"sent what cannot be read ({type(error).__name__})") from None
        if isinstance(message, _Done):
            return
        yield message
        if not isinstance(message, Printed):
            deadline = time.monotonic() + limits.seconds


def _place(pipe: Connection, child: Any) -> str:
    """Return the user's function and line that a child executes, in words; nothing where it does not answer."""
    os.kill(child.pid, PLACE_SIGNAL)
    end = time.monotonic() + SECONDS_TO_ANSWER
    try:
        while pipe.poll(max(0.0, end - time.monotonic())):
            message = pipe.recv()
            if isinstance(message, _Place):
                return f": it is in {message.function}, {message.file}:{message.line}"
    except Exception:  # the child ended, or the signal came between two parts of a message
        pass
    return ""


@dataclass(frozen=True)
class _Place:
    """What a child executes."""

    function: str
    file: str
    line: int


def _answer(pipe: Connection, frame: FrameType | None) -> None:
    """Send the innermost function outside Tilesmith, Triton and Python's library."""
    while frame is not None and not _is_of_the_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        pipe.send(_Place(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))


def _is_of_the_user(file: str) -> bool:
    return not file.startswith(_NOT_OF_THE_USER)


class _Done:
    """The last message of a child."""


def _work(pipe: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(PLACE_SIGNAL, lambda number, frame: _answer(pipe, frame))
    torch.set_num_threads(1)  # the threads of a forked parent are gone
    sys.stdout = sys.stderr = _Sending(pipe.send)
    target(pipe.send, *arguments)
    pipe.send(_Done())
    os._exit(0)  # threads that the code left behind must not keep the process alive


class _Sending(io.TextIOBase):
    """A text file that sends what is written to it."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send(Printed(text))
        return len(text)


def _end_in_words(status: int | None) -> str:
    if status is None:
        return "closed its pipe"
    if status >= 0:
        return f"ended its process with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    meaning = {"SIGKILL": ", as the system does when memory runs out", "SIGSEGV": ", a segmentation fault"}
    return f"was killed by {name}{meaning.get(name, '')}"


def _resident_bytes(process_id: int) -> int:
    """Return the resident memory of a process; 0 where the system does not report it."""
    try:
        pages = Path(f"/proc/{process_id}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
