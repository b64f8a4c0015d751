"""A limit on the time of a process. A process that hangs prints its stacks and ends."""

from __future__ import annotations

import faulthandler
import signal


def end_after(seconds: float, standard_error: int) -> None:
    """Let SIGALRM print the stacks of all threads and end this process, in so many seconds. Forks have no limit.

    The handler needs no GIL, since a thread that hangs may hold it. `faulthandler.dump_traceback_later` would do the
    same by a thread, but hangs itself in a fork of a process in which it runs.
    """
    faulthandler.unregister(signal.SIGALRM)  # a test may have set another handler
    faulthandler.register(signal.SIGALRM, standard_error, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
