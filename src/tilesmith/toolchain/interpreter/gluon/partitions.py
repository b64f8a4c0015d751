"""Partitions of `warp_specialize`: one thread each, of which one runs at a time, until it waits for an mbarrier."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilesmith.toolchain.interpreter.gluon.barriers import Barrier
from tilesmith.toolchain.interpreter.gluon.order import Partition, joined


class Deadlock(Exception):
    """No partition can go on."""


class _Cancelled(BaseException):
    """Ends the thread of a partition when another one failed."""


@dataclass
class _Task:
    """One partition: its function, and where it waits."""

    partition: Partition
    call: Callable[[], Any]
    may_run: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits_for: tuple[Barrier, int, str] | None = None
    ended: bool = False
    cancelled: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def can_run(self) -> bool:
        return not self.ended and (self.waits_for is None or self.waits_for[0].is_over(self.waits_for[1]))


class Scheduler:
    """Runs the partitions of one program."""

    def __init__(self, warps: int) -> None:
        self.current = Partition("the kernel", warps=warps)
        self._task: _Task | None = None
        self._handed_back = threading.Semaphore(0)

    def wait(self, barrier: Barrier, parity: int, where: str) -> None:
        """Return once a phase has ended; other partitions run meanwhile."""
        if not barrier.is_over(parity):
            task = self._task
            if task is None:
                raise Deadlock(f"{where} waits for ever: the mbarrier lacks {barrier.lacks()}")
            task.waits_for = barrier, parity, where
            self._handed_back.release()
            task.may_run.acquire()
            if task.cancelled:
                raise _Cancelled
            task.waits_for = None
        joined(self.current.clock, barrier.visible)

    def run(self, calls: list[Callable[[], Any]], warps: list[int]) -> Any:
        """Run functions as partitions; return the result of the first."""
        parent, known = self.current, self.current.release()
        tasks = [
            _Task(Partition(f"partition {number}", dict(known), warps=size), call)
            for number, (call, size) in enumerate(zip(calls, warps, strict=True))
        ]
        for task in tasks:
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(self._perform, task), daemon=True).start()
        try:
            self._alternate(tasks)
        finally:
            self._cancel(tasks)
            self._task, self.current = None, parent
        for task in tasks:
            joined(parent.clock, task.partition.clock)
        return tasks[0].result

    def _alternate(self, tasks: list[_Task]) -> None:
        while not all(task.ended for task in tasks):
            runnable = [task for task in tasks if task.can_run]
            if not runnable:
                raise Deadlock(_standstill(tasks))
            for task in runnable:
                self._resume(task)
                if task.error is not None:
                    raise task.error

    def _resume(self, task: _Task) -> None:
        self._task, self.current = task, task.partition
        task.may_run.release()
        self._handed_back.acquire()

    def _cancel(self, tasks: list[_Task]) -> None:
        for task in tasks:
            if not task.ended:
                task.cancelled = True
                self._resume(task)

    def _perform(self, task: _Task) -> None:
        task.may_run.acquire()
        try:
            if not task.cancelled:
                task.result = task.call()
        except _Cancelled:
            pass
        except BaseException as error:  # the thread that launched the kernel raises it
            task.error = error
        finally:
            task.ended = True
            self._handed_back.release()


def _standstill(tasks: list[_Task]) -> str:
    waiting = [
        f"{task.partition.name} at {task.waits_for[2]}, whose mbarrier lacks {task.waits_for[0].lacks()}"
        for task in tasks
        if task.waits_for is not None and not task.ended
    ]
    return f"every partition waits: {'; '.join(waiting)}"
