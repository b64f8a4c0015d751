"""Which file or module a command line runs: `python -m package.module`, `pytest tests/test_x.py`, `script.py`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tilesmith.lab.inspect.options import InspectError

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?(\.exe)?")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def program_of(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the file or module that a command runs, and its arguments. Raises InspectError."""
    name, *arguments = command
    if _INTERPRETER.fullmatch(Path(name).name) and not _is_module(name):
        return _program_of_python(name, arguments)
    if Path(name).suffix == ".ipynb":
        raise InspectError(f"{name} is a notebook: use %%inspect in its cells, or jupyter nbconvert --to script {name}")
    if Path(name).is_file() or _is_module(name):
        return name, arguments
    here = str(Path(sys.executable).parent)  # also where the environment is not activated
    found = shutil.which(name, path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    if found is None:
        raise InspectError(f"{name or repr(name)} is not a file, nor a module of {sys.executable}, nor a command")
    with open(found, "rb") as file:
        first = file.readline(200)
    if not (first.startswith(b"#!") and b"python" in first):
        raise InspectError(f"{name} is not a Python program: inspect runs Python files, modules and commands")
    return found, arguments


def _program_of_python(name: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return what `python [options] …` runs. Options of the interpreter have no effect."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "-c"):
        option = rest.pop(0)
        if option in _WITH_VALUE and rest:
            rest.pop(0)
        elif option.startswith("-m"):  # python -mpytest
            rest[:0] = ["-m", option[2:]]
    if not rest:
        raise InspectError(f"{name} runs no script: give it a file or -m with a module")
    if rest[0] in ("-", "-c"):
        raise InspectError(f"{name} {rest[0]}: write the code to a file, since Triton reads the source of its kernels")
    if rest[0] == "-m":
        if len(rest) == 1 or not _is_module(rest[1]):
            raise InspectError(f"{' '.join(rest[1:2]) or '-m'} is not a module of {sys.executable}")
        return rest[1], rest[2:]
    if not Path(rest[0]).is_file():
        raise InspectError(f"{rest[0]} is not a file")
    return rest[0], rest[1:]


def _is_module(name: str) -> bool:
    """Return whether Python can run a module of this name, also one of the current folder. Imports nothing.

    Of a module inside a package only the package is looked for.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    sys.path.insert(0, "")
    try:
        found = find_spec(name.partition(".")[0])
        folders = found.submodule_search_locations if found and "." not in name else None
        return found is not None and (folders is None or any((Path(one) / "__main__.py").exists() for one in folders))
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove("")
