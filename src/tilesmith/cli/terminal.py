"""The console, one-line errors, the operators' specs, and result files, for all commands."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from tilesmith import storage

if TYPE_CHECKING:
    from tilesmith.spec import Spec

WRONG_USAGE = 2
FIRST_SCHEMA = 1  # of an output that has had one format so far
CHECK_FAILED = 1

console = Console(highlight=False)
"""The console. rich writes no control characters where the output is piped."""


STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Names of standard output in place of a file's name."""

RESULT_OPTIONS = ("--json", "--jsonl", "--csv", "--html", "--png")
"""Options whose values are files that a command writes at its end."""

OWN_FILES = {"--json": rb"\s*[\[{]", "--html": rb"\s*<", "--csv": b"op,", "--png": b"\x89PNG"}
"""How a result of these options begins. An existing file that begins otherwise is never replaced."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
"""Errors of standard output: a full disk, a closed stream, a pipe without a reader."""

_reserved: list[int] = []
"""The file descriptor of standard output, where it is reserved for a result."""


def tolerate_encodings() -> None:
    """Let streams that cannot encode a character print a question mark instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")


def require_current_folder() -> None:
    """Exit with one line where the current folder was removed: neither Python nor PyTorch starts there."""
    try:
        os.getcwd()
    except OSError:
        print("tilesmith: the current folder does not exist any more; change to another one", file=sys.stderr)
        sys.exit(WRONG_USAGE)


@contextmanager
def flushed_standard_output() -> Iterator[None]:
    """Write what standard output holds at the end; exit with one line where it cannot be written, as on a full disk."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None where it is closed
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest when it ends
        if error.errno == errno.EPIPE:  # the reader has seen enough
            sys.exit(CHECK_FAILED)
        print(f"tilesmith: cannot write standard output: {error.strerror}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def silence_standard_error() -> None:
    """Let the rest of this process print no errors. Triton's bindings report leaks when the interpreter has ended."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def refuse(message: str) -> NoReturn:
    """Exit with status 2 and one line on standard error."""
    print(f"tilesmith: {' '.join(message.splitlines())}", file=sys.stderr)
    raise typer.Exit(WRONG_USAGE)


def operators() -> Mapping[str, Spec]:
    """Return the spec of every operator, by name."""
    try:
        from tilesmith.ops import SPECS
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        refuse(f"the operators need {error.name}, which is not installed; `tilesmith doctor` says how to get it")
    return SPECS


def reserve_standard_output(words: Sequence[str]) -> None:
    """Send messages to standard error if this command line writes a result to standard output.

    That includes the output of programs that the command runs.
    """
    console.stderr = any(value in STANDARD_OUTPUT for _, value in _given_options(words))
    _reserved.clear()
    with suppress(OSError, ValueError):  # standard output may be closed, or no file
        if console.stderr and sys.stdout.fileno() == 1:
            _reserved.append(os.dup(1))
            os.dup2(2, 1)


def refuse_unwritable_results(words: Sequence[str]) -> None:
    """Exit with one line, before any work, where a result file of this command line cannot be written."""
    own = words[: words.index("--") + 1] if "--" in words else words  # the rest belongs to another program
    if not own or "--help" in own:
        return
    files: dict[str, str] = {}
    for option, value in _given_options(own):
        if option in (*RESULT_OPTIONS, "--save") and value != os.devnull:
            file = os.path.realpath("/dev/stdout" if value == "-" else value)
            if file in files:
                refuse(f"{files[file]} and {option} name the same file, {value}")
            files[file] = option
        is_folder = own[0] == "learn" and own[1] != "show" and option == "--html"
        if option in RESULT_OPTIONS and not is_folder and value not in STANDARD_OUTPUT:
            if value.startswith("--"):
                refuse(f"{option} needs the name of a file to write")
            try:
                storage.require_writable(Path(value))
                _require_own_file(Path(value), OWN_FILES.get(option, b""))
            except OSError as error:
                refuse(f"cannot write {value or repr(value)}: {error.strerror or error}")


def _require_own_file(path: Path, beginning: bytes) -> None:
    """Raise OSError where a file exists that begins otherwise: it is no earlier result, and would be lost."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4096)
        if head and not re.match(beginning, head):
            raise FileExistsError(errno.EEXIST, "the file exists and is no result of this kind; choose another name")


def _given_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, as in `--json FILE` and `--json=FILE`."""
    for word, following in pairwise([*words, None]):
        if word is not None and word.startswith("--"):
            option, equals, value = word.partition("=")
            if equals or following is not None:  # else the parser says that the value is missing
                yield option, value if equals else str(following)


def write_result(path: Path, content: str, replaces: bytes = b"") -> None:
    """Write a result file atomically; exit with one line where it cannot be written.

    An existing file is replaced only if the pattern `replaces` matches its beginning.
    """
    try:
        if str(path) in STANDARD_OUTPUT:
            _write_to_standard_output(content)
            return
        _require_own_file(path, replaces)
        storage.write_atomically(path, content)
    except OSError as error:
        refuse(f"cannot write {path}: {error.strerror or error}")


def _write_to_standard_output(content: str) -> None:
    if not _reserved:
        sys.stdout.write(content)
        return
    with os.fdopen(os.dup(_reserved[0]), "wb") as stream:
        stream.write(content.encode())


def write_json(path: Path, result: Any) -> None:
    """Write strict JSON: infinity and NaN become null. An object says which version of its schema it follows."""
    if isinstance(result, Mapping):
        result = {"schema": FIRST_SCHEMA, **result}
    write_result(path, json.dumps(_strict(result), indent=1, allow_nan=False) + "\n", OWN_FILES["--json"])


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _strict(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return value
