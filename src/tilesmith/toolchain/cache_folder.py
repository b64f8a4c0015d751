"""A folder for Triton's cache that can be written, also where the home folder is missing or read-only."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

from triton import knobs


@functools.cache
def require_writable_cache() -> None:
    """Let Triton cache in a temporary folder where its own folder cannot be written. Processes started later follow."""
    if not _is_writable(Path(knobs.cache.dir)):
        os.environ["TRITON_CACHE_DIR"] = str(_temporary_folder())


def cache_folder() -> str:
    """Return the folder where Triton caches what it compiled."""
    return str(knobs.cache.dir)


def _is_writable(folder: Path) -> bool:
    """Return whether files can be written in this folder, which is created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _temporary_folder() -> Path:
    """Return this user's folder among the temporary files, or a new one where that name is another user's."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir(), f"tilesmith-triton-{user}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and _is_writable(folder):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="tilesmith-triton-"))
