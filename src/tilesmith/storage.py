"""Files that Tilesmith stores: written atomically, and validated when read.

A cache that cannot be written (read-only home, full disk) or read (damaged file) leads to a warning, never to a crash.
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
except ImportError:  # Windows: only the interpreter works there, and processes share nothing
    fcntl = None  # type: ignore[assignment]


def cache_directory() -> Path:
    """Return the folder for measurements of this machine; TILESMITH_CACHE overrides it."""
    return Path(os.environ.get("TILESMITH_CACHE") or platformdirs.user_cache_dir("tilesmith"))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that readers see either the old or the new content. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_relative_to("/dev"):
        # /dev/stdout is a stream, and os.replace would replace /dev/null itself.
        path.write_bytes(data)
        return
    path = path.resolve()  # a symbolic link stays one
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
        with _locked(path):
            write_atomically(path, json.dumps(change(read_json(path)), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        warnings.warn(f"{path} cannot be written, so the result is not stored: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
