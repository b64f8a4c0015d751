"""Files the product keeps: written whole or not at all, read with suspicion.

A cache that cannot be written (read-only home, full disk) or read (damaged, half-copied) costs a warning and the time
to work it out again, never a crash.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

try:
    import fcntl
except ImportError:  # Windows: the interpreter-only use of the package, where nothing is shared between processes
    fcntl = None  # type: ignore[assignment]


def cache_directory() -> Path:
    """Where measured facts about this machine are kept; TILESMITH_CACHE moves it."""
    return Path(os.environ.get("TILESMITH_CACHE") or platformdirs.user_cache_dir("tilesmith"))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write so that a reader sees the old file or the new one. Raises OSError where the disk refuses."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_relative_to("/dev"):
        # Nothing to replace: /dev/stdout is a stream, and renaming a file to /dev/null would take that from everyone.
        path.write_bytes(data)
        return
    path = path.resolve()  # a link goes on being one
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> Any | None:
    """What the file holds; None where there is none; None and a warning where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{path} cannot be read and is ignored: {error}", RuntimeWarning, stacklevel=2)
        return None


def update_json(path: Path, change: Callable[[Any | None], Any]) -> bool:
    """Replace the content by change(content), one process at a time. False, with a warning, where that fails."""
    try:
        with _locked(path):
            write_atomically(path, json.dumps(change(read_json(path)), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        warnings.warn(f"{path} cannot be written, so this is not kept: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
