"""Children of the nursery, as the judge sees them: asked by messages, ended by limits, never trusted."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tilesmith import messages, nursery_process
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.isolation.limits import Limits

ARENA_BYTES = 512 << 20  # virtual; memory that nobody writes takes no room
SECONDS_TO_START = 600.0  # for importing torch and Triton from a slow disk
SECONDS_FOR_STATUS = 2.0
LONGEST_OUTPUT = 1 << 14


class Ended(Exception):
    """A child gave no answer. The message completes a sentence that begins with "the candidate"."""


class Nursery:
    """Starts children. One nursery serves many candidates, from several threads.

    `requests` is the socket of a nursery that someone else started; by default this object starts one.
    """

    def __init__(self, requests: socket.socket | None = None) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = requests
        self._is_lent = requests is not None

    def start(self) -> None:
        """Start the nursery now, because its imports take seconds."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        with self._lock:
            if self._process is not None and self._requests is not None:
                self._requests.close()
                self._process.wait()
                self._process = self._requests = None

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def child(
        self, role: str, scratch: str, limits: Limits, *, confined: bool, programs: bool = False,
        cache: str | None = None, on_gpu: bool = False, without: Sequence[str] = (),
    ) -> Child:  # fmt: skip
        """Start a child with this role. A confined child may run a candidate's code.

        With `programs` it may start programs. `cache` is a folder for compiled kernels, which it may write to.
        A child `on_gpu` may use the files of GPUs. `without` names protections that it does without.
        """
        ours, theirs = socket.socketpair()
        status, their_status = os.pipe()
        arena = Arena.new(ARENA_BYTES)
        output = tempfile.TemporaryFile()  # noqa: SIM115  # the child closes it
        request = {
            "role": role,
            "scratch": scratch,
            "limits": asdict(limits),
            "confined": confined,
            "programs": programs,
            "cache": cache,
            "on_gpu": on_gpu,
            "without": list(without),
            "arena_bytes": arena.size,
        }
        with self._lock:
            requests = self._ready()
            descriptors = [theirs.fileno(), their_status, arena.descriptor, output.fileno()]
            socket.send_fds(requests, [json.dumps(request).encode()], descriptors)
        theirs.close()
        os.close(their_status)
        return Child(ours, status, arena, output, limits)

    def _ready(self) -> socket.socket:
        if self._is_lent and self._requests is not None:
            return self._requests
        if self._process is None or self._process.poll() is not None or self._requests is None:
            nursery = nursery_process.started()
            self._process, self._requests = nursery.process, nursery.requests
        return self._requests


class Child:
    """One child process and the arena it shares with the judge."""

    def __init__(self, channel: socket.socket, status: int, arena: Arena, output: Any, limits: Limits) -> None:
        self.arena = arena
        self.limits = limits
        self._channel = channel
        self._status = status
        self._output = output
        self._told = b""
        self._started = False
        self.no_gpu: str | None = None  # why a child that should use a GPU cannot
        self._protections: tuple[str, ...] = ()

    def ready(self) -> tuple[str, ...]:
        """Wait for the child's first message, and return the protections that hold. Raises Ended."""
        try:
            if not self._started:
                told = messages.receive(self._channel, time.monotonic() + SECONDS_TO_START)
                self._started = True
                self._protections = tuple(str(one) for one in told["ready"])
                self.no_gpu = str(told["no_gpu"]) if "no_gpu" in told else None
            return self._protections
        except (messages.TooLate, messages.Garbage, messages.Closed, KeyError, TypeError):
            raise Ended(f"never started: it {self._reason()}") from None

    def ask(self, message: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Send a message and return the answer. Raises Ended where none comes in time."""
        limit = self.limits.seconds if seconds is None else seconds
        self.ready()
        deadline = time.monotonic() + limit
        self.send(message, limit)
        return self.receive(deadline, limit)

    def send(self, message: dict[str, Any], seconds: float | None = None) -> None:
        """Send a message, once the child is ready. Raises Ended."""
        limit = self.limits.seconds if seconds is None else seconds
        self.ready()
        try:
            self._channel.settimeout(limit)
            messages.send(self._channel, message)
        except TimeoutError:
            raise Ended(f"was still running after {limit:g} s") from None
        except OSError:
            raise Ended(self._reason()) from None

    def receive(self, deadline: float, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message. `deadline` is a time of `time.monotonic`, `seconds` from now. Raises Ended."""
        limit = self.limits.seconds if seconds is None else seconds
        try:
            return messages.receive(self._channel, deadline)
        except (messages.TooLate, TimeoutError):
            raise Ended(f"was still running after {limit:g} s") from None
        except messages.Garbage as error:
            raise Ended(f"sent {error}, not an answer") from None
        except (messages.Closed, OSError):
            raise Ended(self._reason()) from None

    def printed(self) -> str:
        """Return what the child printed, shortened."""
        with suppress(OSError, ValueError):
            size = os.fstat(self._output.fileno()).st_size
            return os.pread(self._output.fileno(), LONGEST_OUTPUT, max(0, size - LONGEST_OUTPUT)).decode(
                errors="replace"
            )
        return ""

    def end(self) -> None:
        """End the child and everything it started."""
        self._read_status(SECONDS_FOR_STATUS, until=(b"pid",))
        self._read_status(0.0)
        told = self._told.split()
        if told[:1] == [b"pid"] and not {b"exit", b"signal"} & set(told):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(told[1]), signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(told[2]), signal.SIGKILL)
        self._channel.close()
        os.close(self._status)
        self.arena.close()
        self._output.close()

    def _reason(self) -> str:
        self._read_status(SECONDS_FOR_STATUS)
        told = self._told.decode(errors="replace").split()
        if "signal" in told:
            number = int(told[told.index("signal") + 1])
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            hint = {"SIGKILL": ", as happens beyond the memory limit", "SIGXCPU": ", the limit of CPU time"}
            return f"was ended by {name}{hint.get(name, '')}"
        if "exit" in told:
            return f"ended its process with status {told[told.index('exit') + 1]}"
        return "closed the connection to the judge"

    def _read_status(self, seconds: float, until: tuple[bytes, ...] = (b"exit", b"signal")) -> None:
        """Read what the supervisor tells, until it tells one of these words or the time is over."""
        deadline = time.monotonic() + seconds
        while (
            not any(word in self._told for word in until)
            and select.select([self._status], [], [], max(0.0, deadline - time.monotonic()))[0]
        ):
            part = os.read(self._status, 256)
            self._told += part
            if not part:
                return
