"""The files that the editor may open: ordinary files, read and written with a version.

The version is a digest of the content. A save names the version that it started from, so a change from outside is never
overwritten unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilesmith.storage import write_atomically

SUFFIXES = (".py", ".cu")
LONGEST = 1 << 20  # bytes
MOST_LISTED = 500


class FileError(Exception):
    """A file that the studio does not open or write. The message is one line."""


class ConflictError(FileError):
    """A save that would overwrite a change from outside. `content` is the file as it is now."""

    def __init__(self, content: Content) -> None:
        super().__init__("the file was changed outside this tab")
        self.content = content


@dataclass(frozen=True)
class Content:
    """The text of a file and its version. The version of a missing file is ""."""

    text: str
    version: str


def content_of(file: Path) -> Content:
    """Return the content of a file. Raises FileError where the file cannot be shown as text."""
    try:
        if file.stat().st_size > LONGEST:
            raise FileError(f"{file.name} is larger than {LONGEST >> 20} MiB")
        raw = file.read_bytes()
    except FileNotFoundError:
        return Content("", "")
    except OSError as error:
        raise FileError(f"{file.name}: {error.strerror or error}") from None
    return Content(raw.decode("utf-8", errors="replace").replace("\r\n", "\n"), _version(raw))


def save(file: Path, text: str, version: str) -> Content:
    """Write a text over the version that it started from. Raises ConflictError where the file has changed since."""
    now = content_of(file)
    if now.version != version and now.text != text:
        raise ConflictError(now)
    raw = text.encode()
    if len(raw) > LONGEST:
        raise FileError(f"the text is larger than {LONGEST >> 20} MiB")
    if now.text != text or not now.version:
        try:
            write_atomically(file, raw)
        except OSError as error:
            raise FileError(f"{file.name}: {error.strerror or error}") from None
        return Content(text, _version(raw))
    return now


class Folder:
    """The files of free mode: those inside the given folders, and the given files."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]

    def file(self, name: str) -> Path:
        """Return the file of this name, relative to the first folder or absolute. Raises FileError outside of all."""
        if "\0" in name:
            raise FileError("the name of a file has no NUL")
        path = (self._roots[0] / name).resolve()
        if not any(path == root or root in path.parents for root in self._roots):
            raise FileError(f"{name} is outside the studio's folders")
        if path.suffix not in SUFFIXES:
            raise FileError(f"{name}: the studio opens files that end in {' or '.join(SUFFIXES)}")
        return path

    def name(self, file: Path) -> str:
        """Return the name of a file as `file` takes it."""
        first = self._roots[0]
        return str(file.relative_to(first)) if first in file.parents else str(file)

    def listed(self) -> list[str]:
        """Return the names of the files, without hidden folders."""
        found = (self.name(file) for root in self._roots for file in _files(root))
        return [name for name, _ in zip(dict.fromkeys(found), range(MOST_LISTED), strict=False)]


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.name.startswith((".", "__")) or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.suffix in SUFFIXES:
            yield path


def _version(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
