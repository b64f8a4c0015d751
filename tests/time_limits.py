"""A limit on the time of a process. A process that hangs prints its stacks and ends."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading

END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def end_after(seconds: float, standard_error: int) -> None:
    """Let SIGALRM print the stacks of all threads and end this process, in so many seconds. Forks have no limit.

    The handler needs no GIL, since a thread that hangs may hold it. `faulthandler.dump_traceback_later` would do the
    same by a thread, but hangs itself in a fork of a process in which it runs.
    """
    faulthandler.unregister(signal.SIGALRM)  # a test may have set another handler
    faulthandler.register(signal.SIGALRM, standard_error, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def end_forks_with_this_process() -> None:
    """Let the system kill the forks of this process's main thread when the process ends.

    A fork that hangs would keep the pipe open by which pytest-xdist sees the end of a process: the run would not end.
    Forks of forks are not touched: the judge has to end what a candidate leaves behind.
    """
    if not sys.platform.startswith("linux"):
        return
    prctl = ctypes.CDLL(None).prctl
    process, forks_now = os.getpid(), False

    def note() -> None:
        nonlocal forks_now
        forks_now = os.getpid() == process and threading.current_thread() is threading.main_thread()

    def obey() -> None:
        if forks_now:
            prctl(END_WITH_PARENT, signal.SIGKILL)

    os.register_at_fork(before=note, after_in_child=obey)
