"""Units run in a child process, so that a kernel which crashes takes down its own row and nothing else.

One child serves one spec. When it dies, the unit it was at gets a row that says so, and a new child goes on with the
next. What remains of an interrupted run is what was measured until then.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from tilesmith.lab.bench.measuring.sensors import Sensors
from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.verdict import power_cap
from tilesmith.lab.bench.running.bench_units import Source, Unit

POLL_SECONDS = 0.1
LONGEST_FAREWELL_SECONDS = 10.0
LONGEST_UNIT_SECONDS = 600.0  # a kernel that never ends must not end the run


class Worker(Protocol):
    """Runs units of one spec, in the child."""

    def row(self, unit: Unit) -> Row: ...

    def healthy(self) -> bool:
        """Whether another unit can run in this process: after an illegal access no CUDA call works any more."""


@dataclass(frozen=True)
class Job:
    """All units of one spec. `start` makes the worker in the child and says what it runs on."""

    op: str
    source: Source
    units: tuple[Unit, ...]
    start: Callable[[Source], tuple[Worker, dict[str, Any]]]


@dataclass(frozen=True)
class Started:
    unit: Unit


@dataclass(frozen=True)
class About:
    """What the child runs on: device, versions, limits."""

    facts: dict[str, Any]


Event = About | Started | Row


def run(job: Job, sensors: Sensors | None = None) -> Iterator[Event]:
    """Run a job's units one after another; rows come as they are finished."""
    remaining = list(job.units)
    while remaining:
        started = finished = 0
        for event in _one_child(replace(job, units=tuple(remaining)), sensors):
            if isinstance(event, _Died):
                # One that dies before its first unit would do so again: no unit will ever run.
                lost = remaining[finished:started] if started else remaining
                yield from (unit.row(job.op, job.source, error=event.reason) for unit in lost)
                finished += len(lost)
                continue
            started += isinstance(event, Started)
            finished += isinstance(event, Row)
            yield event
        remaining = remaining[finished:]


@dataclass(frozen=True)
class _Died:
    reason: str


def _one_child(job: Job, sensors: Sensors | None) -> Iterator[Event | _Died]:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(job, sender), daemon=True)
    child.start()
    sender.close()  # so that the pipe ends when the child does
    try:
        yield from _received(receiver, child, sensors)
    finally:
        child.kill()
        child.join()


def _received(receiver: Connection, child: BaseProcess, sensors: Sensors | None) -> Iterator[Event | _Died]:
    last = time.monotonic()
    while True:
        while not receiver.poll(POLL_SECONDS):
            if sensors is not None:
                sensors.sample()
            if time.monotonic() - last > LONGEST_UNIT_SECONDS:
                yield _Died(f"no result after {LONGEST_UNIT_SECONDS:.0f} s: given up")
                return
        last = time.monotonic()
        try:
            message = receiver.recv()
        except EOFError:
            child.join()
            yield _Died(_obituary(child.exitcode))
            return
        if message is None:
            child.join(LONGEST_FAREWELL_SECONDS)  # what it has started, such as compiling processes, ends in good order
            return
        if isinstance(message, Started) and sensors is not None:
            sensors.taken()  # whatever came before, such as measuring the limits, is not this unit's
        if isinstance(message, Row) and sensors is not None:
            seen = sensors.taken()
            message.clock_mhz, message.power_w, message.throttled = seen.clock_mhz, seen.power_w, seen.throttled
            message.verdict = " ".join(filter(None, (message.verdict, power_cap(message, seen.highest_mhz)))) or None
        yield message
        if isinstance(message, _Died):
            return


def _obituary(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"its process was ended by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"its process was ended by signal {-exit_code}"
    return f"its process ended with status {exit_code}"


def _serve(job: Job, sender: Connection) -> None:
    """The child: make the worker, run the units, say so. An interrupt is for the parent to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # torch.compile would start as many processes as there are cores, to compile the one or two kernels of a rival.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        worker, facts = job.start(job.source)
    except Exception as error:
        sender.send(_Died(f"{type(error).__name__}: {error}"))
        return
    sender.send(About(facts))
    for unit in job.units:
        sender.send(Started(unit))
        sender.send(worker.row(unit))
        if not worker.healthy():
            sender.close()
            os._exit(1)  # an orderly exit would wait for a device that no longer answers
    sender.send(None)
