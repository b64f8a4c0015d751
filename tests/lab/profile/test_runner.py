import sys
from pathlib import Path

import pytest

from tilesmith.lab.profile.runner import INTERRUPTED, run


@pytest.fixture(autouse=True)
def _own_arguments_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no input')", 1),
        ("raise KeyboardInterrupt", INTERRUPTED),
        ("1 / 0", 1),
    ],
)
def test_returns_the_exit_status_of_python(code: str, status: int) -> None:
    assert run(["-c", code]) == status


def test_prints_the_traceback_of_a_failed_program(capsys: pytest.CaptureFixture[str]) -> None:
    run(["-c", "1 / 0"])
    run(["-c", "raise SystemExit('no input')"])
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert said.endswith("no input\n")


def test_script_sees_its_own_name_arguments_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside_it.py").write_text("here = True\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside_it\nprint(__name__, sys.argv, beside_it.here)\n")
    assert run([str(script), "--fast"]) == 0
    assert capsys.readouterr().out == f"__main__ {[str(script), '--fast']} True\n"


def test_a_module_is_found_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "found_here.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    assert run(["-m", "found_here", "x"]) == 0
    assert capsys.readouterr().out == "__main__ ['x']\n"
