"""Split a command line into the Python interpreter and its program."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tilesmith.lab.profile.summary import ProfileError

_TAKES_A_VALUE = ("-W", "-X")


def runnable(command: Sequence[str]) -> list[str]:
    """Return the command to start: a Python file gets this process's interpreter. Raises ProfileError."""
    if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        _exists(command[0])
        return [sys.executable, *command]
    if shutil.which(command[0]) is None:
        raise ProfileError(f"{command[0]}: no such command")
    return list(command)


class NotPythonError(ProfileError):
    """The command runs no Python."""


def is_python(command: Sequence[str]) -> bool:
    """Return whether the command runs Python. Raises ProfileError where its file is missing."""
    try:
        python_program(command)
    except NotPythonError:
        return False
    return True


def python_program(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the interpreter with its flags, and its program: a file, -m module, or -c code. Raises ProfileError."""
    first = command[0]
    if first.endswith(".py"):
        _exists(first)
        return [sys.executable], list(command)
    found = shutil.which(first)
    if found is None:
        raise ProfileError(f"{first}: no such command")
    if re.fullmatch(r"python[\d.]*", Path(first).name):
        return _split_flags([found, *command[1:]])
    interpreter = _interpreter_of(Path(found))
    if interpreter is None:
        raise NotPythonError(f"{first} is not a Python program, and this profiler runs nothing else; see --tool")
    return interpreter, [found, *command[1:]]


def _split_flags(command: list[str]) -> tuple[list[str], list[str]]:
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] not in ("-m", "-c"):
        place += 2 if command[place] in _TAKES_A_VALUE else 1
    target = command[place:]
    if not target or (target[0] in ("-m", "-c") and len(target) < 2):
        raise ProfileError(f"{' '.join(command)} names no program to run")
    if target[0] not in ("-m", "-c"):
        _exists(target[0])
    return command[:place], target


def _exists(file: str) -> None:
    if not Path(file).exists():
        raise ProfileError(f"{file}: no such file")


def _interpreter_of(script: Path) -> list[str] | None:
    """Return the Python interpreter in a script's shebang line; None without one."""
    with script.open("rb") as file:
        first = file.readline(512)
    if not first.startswith(b"#!") or b"python" not in first:
        return None
    return first[2:].decode().split()
