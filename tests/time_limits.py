"""A limit on the time of a process. A process that hangs prints its stacks and ends."""

from __future__ import annotations

import faulthandler
import os
import signal

_seconds_left = 0.0


def _note_seconds_left() -> None:
    global _seconds_left
    _seconds_left = signal.getitimer(signal.ITIMER_REAL)[0]


# Timers do not pass to a fork. A fork that hangs would keep the pipe open by which pytest-xdist sees its parent's end.
os.register_at_fork(
    before=_note_seconds_left, after_in_child=lambda: signal.setitimer(signal.ITIMER_REAL, _seconds_left)
)


def end_after(seconds: float, standard_error: int) -> None:
    """Let SIGALRM print the stacks of all threads and end this process, and its forks, in so many seconds.

    The handler needs no GIL, since a thread that hangs may hold it. `faulthandler.dump_traceback_later` would do the
    same by a thread, but hangs itself in a fork of a process in which it runs.
    """
    faulthandler.unregister(signal.SIGALRM)  # a test may have set another handler
    faulthandler.register(signal.SIGALRM, standard_error, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
