"""Waiting until the learner saves a file or presses a key."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import termios
    import tty
except ImportError:  # Windows: files are watched, keys are not
    termios = None  # type: ignore[assignment]

POLL_SECONDS = 0.2


@contextmanager
def keys_without_return() -> Iterator[None]:
    """Deliver every key at once, without Return. Restore the terminal at the end."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def file_stamp(file: Path) -> tuple[int, int]:
    """Return a value that changes with every save; (0, 0) while an editor replaces the file."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def wait_for_key_or_save(file: Path, seen: tuple[int, int]) -> str:
    """Return the pressed key, "" after a save, or "q" at the end of input."""
    while True:
        if file_stamp(file) != seen and file_stamp(file) != (0, 0):
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if ready:
            return sys.stdin.read(1) or "q"
        time.sleep(0)
