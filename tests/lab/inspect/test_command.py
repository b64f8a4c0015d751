"""Which file or module a command line after `tilesmith inspect --` runs."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilesmith.cli import app
from tilesmith.lab.inspect.options import InspectError
from tilesmith.lab.inspect.running.command import program_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a script, a package and two commands on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "script.py").write_text("print(1)\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("raise AssertionError('imported')\n")
    for name, first in (("own-command", f"#!{sys.executable}"), ("shell-command", "#!/bin/sh")):
        (tmp_path / "bin" / name).write_text(f"{first}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["script.py", "4"], ("script.py", ["4"])),
        (["pytest", "tests/test_x.py::test_y", "-q"], ("pytest", ["tests/test_x.py::test_y", "-q"])),
        (["python", "script.py", "-m", "4"], ("script.py", ["-m", "4"])),
        (["python3.12", "-u", "-W", "ignore", "script.py"], ("script.py", [])),
        ([sys.executable, "-m", "own_package.main", "4"], ("own_package.main", ["4"])),
        (["python", "-B", "-mpytest", "-q"], ("pytest", ["-q"])),
        (["own_package.main", "4"], ("own_package.main", ["4"])),
    ],
)
def test_command_names_a_file_or_a_module(command: list[str], program: tuple[str, list[str]]) -> None:
    assert program_of(command) == program


def test_python_command_of_the_path_is_run_as_a_file(folder: Path) -> None:
    assert program_of(["own-command", "4"]) == (str(folder / "bin" / "own-command"), ["4"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["absent.py"], "absent.py is not a file, nor a module of"),
        (["python", "absent.py"], "absent.py is not a file"),
        (["python", "-m", "absent_package.main"], "absent_package.main is not a module of"),
        (["python", "-m"], "-m is not a module of"),
        (["python", "-u"], "python runs no script"),
        (["python", "-c", "print(1)"], "python -c: write the code to a file"),
        (["lesson.ipynb"], "lesson.ipynb is a notebook: use %%inspect in its cells, or jupyter nbconvert --to script"),
        (["shell-command"], "shell-command is not a Python program"),
    ],
)
def test_command_without_a_program_is_refused(command: list[str], message: str) -> None:
    with pytest.raises(InspectError, match=message):
        program_of(command)


def test_refusal_is_one_line_with_status_2() -> None:
    result = CliRunner().invoke(app, ["inspect", "--", "python", "absent.py"])
    assert (result.exit_code, result.stderr) == (2, "tilesmith: absent.py is not a file\n")
