"""The command line as a whole: fast start, help, JSON, errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tilesmith import __version__
from tilesmith.cli import app
from tilesmith.cli.terminal import operators, write_json

runner = CliRunner()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["doctor", "--help"], ["check", "--help"]], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom tilesmith.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout


def test_inspect_imports_torch_only_where_the_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('torch' in sys.modules, 'torch._dynamo' in sys.modules, file=sys.stderr)")
    program = (
        "import sys\nfrom tilesmith.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, "inspect", str(script)], capture_output=True, text=True)
    assert done.stderr.splitlines()[0] == "True False", done.stderr
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_copying_debug_programs_imports_no_stage_and_prints_no_noise(tmp_path: Path) -> None:
    program = (
        "import atexit, os, sys\nfrom tilesmith.cli import main\n"
        "atexit.register(os.write, 2, b'leaked')\n"  # as Triton's bindings do, after everything else
        "try: main()\n"
        "finally: print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    words = ["debug", "llama", "--copy", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert len(list(tmp_path.iterdir())) == 6


def test_check_does_not_import_torch_compile() -> None:
    program = (
        "import sys\nfrom tilesmith.cli import main\n"
        "try: main()\n"
        "finally: print('torch._dynamo' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "check", "silu", "--case", "odd", "--dtype", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.endswith("False\n")


def test_version_prints_the_package_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"tilesmith {__version__}\n"


def test_unknown_command_is_wrong_usage() -> None:
    assert runner.invoke(app, ["chekc"]).exit_code == 2


@pytest.mark.parametrize("command", ["check", "ops", "doctor", "tour", "tune"])
def test_every_command_has_help(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": [float("inf"), 1.5, (float("nan"),)], "b": {"c": -float("inf"), "d": "nan"}})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content == {"schema": 1, "a": [None, 1.5, [None]], "b": {"c": None, "d": "nan"}}


def test_missing_triton_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module in [name for name in sys.modules if name.startswith("tilesmith.ops")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(typer.Exit):
        operators()
    assert capsys.readouterr().err == (
        "tilesmith: the operators need triton, which is not installed; `tilesmith doctor` says how to get it\n"
    )
