"""Waiting for a file to be saved or a key to be pressed, whichever comes first."""

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
except ImportError:  # Windows has no such terminals: files are watched, keys are not
    termios = None  # type: ignore[assignment]

POLL_SECONDS = 0.2


@contextmanager
def single_keys() -> Iterator[None]:
    """Keys arrive one by one, without Return; the terminal is as it was afterwards."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def stamp(file: Path) -> tuple[int, int]:
    """Changes when the file is saved; editors replace files, so it may be gone for a moment."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def key_or_save(file: Path, seen: tuple[int, int]) -> str:
    """The key that was pressed, or "" once the file is another than the one seen. "q" where input has ended."""
    while True:
        if stamp(file) != seen and stamp(file) != (0, 0):
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if ready:
            return sys.stdin.read(1) or "q"
        time.sleep(0)
