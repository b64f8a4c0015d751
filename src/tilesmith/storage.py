"""Files that Tilesmith stores: written atomically, and validated when read.

A cache that cannot be written (read-only home, full disk) or read (damaged file) leads to a warning, never to a crash.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import platformdirs

try:
    import fcntl
except ImportError:  # Windows: only the interpreter works there, and processes share nothing
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tilesmith-partial-"
"""How the name of a file starts that is not written completely yet."""


def cache_directory() -> Path:
    """Return the folder for measurements of this machine; TILESMITH_CACHE overrides it."""
    return Path(os.environ.get("TILESMITH_CACHE") or platformdirs.user_cache_dir("tilesmith"))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that readers see either the old or the new content. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))  # a symbolic link stays one; `resolve` raises where links form a loop
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    try:
        with _temporary_beside(path) as (file, temporary):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:  # as a full disk does
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def require_writable(path: Path) -> None:
    """Raise OSError where `write_atomically` could not write this file, or would make a folder, as for a wrong name."""
    if is_stream(path):
        return
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.parent.exists():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}")
    with _temporary_beside(path):  # permissions alone do not tell: no file can be made in /proc
        pass


def is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or a standard stream, which no file may replace."""
    return (path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")) or path.is_fifo()


@contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file in the folder of `path`, locked while it is written; remove it unless it was renamed."""
    while True:
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        with open(temporary, "xb") as file:
            try:
                _lock(file, wait=True)
                if temporary.exists():
                    yield file, temporary
                    return
            finally:
                with suppress(OSError):
                    temporary.unlink()


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of writers that were killed: a living writer holds a lock on its file."""
    if fcntl is not None:
        for abandoned in folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError), open(abandoned, "rb") as file:
                _lock(file, wait=False)
                abandoned.unlink()


def _lock(file: IO[Any], *, wait: bool) -> None:
    """Lock a file; without waiting, raise OSError where another process has the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:
                raise  # else: a filesystem without locks


def read_json(path: Path) -> Any | None:
    """Return the content of a file; None where there is no file; None and a warning where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{path} cannot be read and is ignored: {error}", RuntimeWarning, stacklevel=2)
        return None


def update_json(path: Path, change: Callable[[Any | None], Any]) -> bool:
    """Replace the content by change(content), one process at a time. Return False, with a warning, on failure."""
    try:
        with locked(path):
            write_atomically(path, json.dumps(change(read_json(path)), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        warnings.warn(f"{path} cannot be written, so the result is not stored: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time read, change and write a file, where the system has locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        _lock(lock, wait=True)
        yield
