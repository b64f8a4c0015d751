"""Run units in a child process, so that a kernel that crashes loses its own row only.

One child serves one spec. When the child dies, the current unit gets a row with the reason, and a new child continues
with the next unit.
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
from tilesmith.lab.bench.result import Finished, Row
from tilesmith.lab.bench.roofline.verdict import power_cap
from tilesmith.lab.bench.running.bench_units import Source

POLL_SECONDS = 0.1
SECONDS_TO_EXIT = 10.0
LONGEST_UNIT_SECONDS = 600.0  # a kernel that hangs must not stop the run


class Worker(Protocol):
    """Runs units in the child."""

    def row(self, unit: Any) -> Finished: ...

    def healthy(self) -> bool:
        """Return whether this process can run another unit: after an illegal access every CUDA call fails."""


@dataclass(frozen=True)
class Job:
    """All units of one spec, or of one survey. `start` creates the worker in the child and returns the facts about its
    device."""

    op: str
    source: Source
    units: tuple[Any, ...]  # each has `row(op, source, error=…)`, its result where the child died
    start: Callable[[Source], tuple[Worker, dict[str, Any]]]


@dataclass(frozen=True)
class Started:
    """The child starts a unit."""

    unit: Any


@dataclass(frozen=True)
class About:
    """Facts about the child: device, versions, limits."""

    facts: dict[str, Any]


Event = About | Started | Finished


def run_job(job: Job, sensors: Sensors | None = None) -> Iterator[Event]:
    """Run a job's units in order. Yield each event as it happens."""
    remaining = list(job.units)
    while remaining:
        started = finished = 0
        for event in _one_child(replace(job, units=tuple(remaining)), sensors):
            if isinstance(event, _Died):
                # A child that dies before its first unit would die again: all units are lost.
                lost = remaining[finished:started] if started else remaining
                yield from (unit.row(job.op, job.source, error=event.reason) for unit in lost)
                finished += len(lost)
                continue
            started += isinstance(event, Started)
            finished += isinstance(event, Finished)
            yield event
        remaining = remaining[finished:]


@dataclass(frozen=True)
class _Died:
    """The child ended unexpectedly."""

    reason: str


def _one_child(job: Job, sensors: Sensors | None) -> Iterator[Event | _Died]:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(job, sender), daemon=True)
    child.start()
    sender.close()  # now the pipe closes when the child ends
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
                yield _Died(f"no result after {LONGEST_UNIT_SECONDS:.0f} s: stopped")
                return
        last = time.monotonic()
        try:
            message = receiver.recv()
        except EOFError:
            child.join()
            yield _Died(_unexpected_end(child.exitcode))
            return
        if message is None:
            child.join(SECONDS_TO_EXIT)  # lets its compile processes end
            return
        if isinstance(message, Started) and sensors is not None:
            sensors.taken()  # drop the readings from before this unit
        if isinstance(message, Row) and sensors is not None:
            seen = sensors.taken()
            message.clock_mhz, message.power_w, message.throttled = seen.clock_mhz, seen.power_w, seen.throttled
            message.verdict = " ".join(filter(None, (message.verdict, power_cap(message, seen.highest_mhz)))) or None
        yield message
        if isinstance(message, _Died):
            return


def _unexpected_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"its process was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"its process was killed by signal {-exit_code}"
    return f"its process ended with status {exit_code}"


def _serve(job: Job, sender: Connection) -> None:
    """Run in the child: create the worker, run the units, send the rows. The parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # torch.compile would start one process per core to compile one or two kernels.
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
            os._exit(1)  # a normal exit would wait for a device that no longer answers
    sender.send(None)
