"""Results on standard output are alone there, and any encoding of the terminal will do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from forked import forking
from tilesmith.cli import app

TRAINING = (
    "train", "llama", "--hidden-dim", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "4",
    "--num-steps", "1",
)  # fmt: skip
PRINTING = """
import torch, triton, triton.language as tl
print("the script's own words")
@triton.jit
def double(x_ptr):
    tl.store(x_ptr, 2 * tl.load(x_ptr))
double[(1,)](torch.ones(1, device="cuda"))
"""


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    with forking():
        return subprocess.run(
            [sys.executable, "-c", "import sys; from tilesmith.cli import main; main()", *words],
            capture_output=True, env={**os.environ, **variables}, timeout=300,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
@pytest.mark.parametrize("command", [TRAINING, ("ops",), ("doctor",)], ids=lambda command: command[0])
def test_json_on_standard_output_is_alone(command: tuple[str, ...], name: str) -> None:
    done = CliRunner().invoke(app, [*command, "--json", name])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert done.stderr, "the text for people is on standard error"


def test_words_of_an_inspected_script_leave_standard_output_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PRINTING)
    done = run("inspect", str(tmp_path / "script.py"), "--target", "cuda:90", "--json=/dev/stdout")
    assert json.loads(done.stdout)["kernels"], done.stderr.decode()
    assert b"the script's own words" in done.stderr


def test_output_without_a_result_stays_on_standard_output() -> None:
    CliRunner().invoke(app, ["ops", "--json", "-"])
    done = CliRunner().invoke(app, ["ops"])
    assert "silu" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_in_other_encodings_has_no_traceback(encoding: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        f"for stream in (sys.stdout, sys.stderr): stream.reconfigure(encoding='{encoding}')\n"
        "from tilesmith.cli import main\n"
        "main()"
    )
    for words in (TRAINING, ("ops",), ("learn", "list", "--folder", str(tmp_path))):
        with forking():
            done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode(encoding)
        assert b"Traceback" not in done.stderr
        done.stdout.decode(encoding)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bench", "silu", "--device", "h200", "--against", "nosuch"], "--against: nosuch is not one of"),
        (["inspect", __file__, "--config", "zzz"], "--config 'zzz': expected a number, FIELD=VALUE,… or all"),
        (["learn", "--exercises", "nosuchdir", "list"], "--exercises must come after the command"),
        (["learn", "verify", "vector-add", "--every", "3"], "--every needs --mutants"),
        (["learn", "--html", __file__], f"--html: {__file__} is not a folder"),
        (["learn", "list", "--folder", __file__], f"--folder: {__file__} is not a folder"),
        (["mcp", "--folder", "nosuchdir"], "--folder: nosuchdir is not a folder"),
        (["mcp", "--folder", __file__], f"--folder: {__file__} is not a folder"),
        (["train", "llama", "--batch-size", "99999999999999999999"], "out of memory; try smaller sizes"),
    ],
)
def test_option_without_effect_is_refused(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["check", "silu", "--json"],
        ["bench", "silu", "--device", "h200", "--csv"],
        ["bench", "silu", "--device", "h200", "--png"],
        ["judge", "silu", __file__, "--jsonl"],
        ["train", "llama", "--html"],
        ["compare", "llama", "--json"],
        ["tour", "--html"],
        ["learn", "verify", "--json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("separate", [True, False])
def test_unwritable_result_is_refused_before_any_work(words: list[str], separate: bool, tmp_path: Path) -> None:
    given = [*words, str(tmp_path)] if separate else [*words[:-1], f"{words[-1]}={tmp_path}"]
    with patch("tilesmith.storage.write_atomically", side_effect=AssertionError):
        done = CliRunner().invoke(app, given)
    assert (done.exit_code, done.output) == (2, f"tilesmith: cannot write {tmp_path}: Is a directory\n")


@pytest.mark.parametrize("words", [["check", "silu", "--json"], ["bench", "silu", "--csv"], ["tour", "--html"]])
def test_result_in_a_missing_folder_is_refused_and_makes_none(words: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "reslts"
    with patch("tilesmith.storage.write_atomically", side_effect=AssertionError):
        done = CliRunner().invoke(app, [*words, str(missing / "result")])
    assert (done.exit_code, done.output) == (
        2, f"tilesmith: cannot write {missing / 'result'}: there is no folder {missing}\n"
    )  # fmt: skip
    assert not missing.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["ops", "--json"],
        ["inspect", "script.py", "--html"],
        ["bench", "silu", "--device", "h200", "--cases", "one", "--csv"],
        ["bench", "silu", "--device", "h200", "--cases", "one", "--png"],
        ["train", "llama", "--hidden-dim", "16", "--num-layers", "1", "--seq-len", "8", "--num-steps", "1", "--save"],
        ["learn", "show", "vector-add", "--html"],
    ],
    ids=" ".join,
)
def test_result_never_replaces_a_file_that_is_no_result(words: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "my_kernel.py"
    mine.write_text("import triton\n")
    done = CliRunner().invoke(app, [*words, str(mine)])
    assert done.exit_code == 2
    assert f"cannot write {mine}: the file exists and is no" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert mine.read_text() == "import triton\n"


def test_exported_report_never_replaces_another_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Add two vectors\n")
    export = ["learn", "export", "--folder", str(tmp_path)]
    done = CliRunner().invoke(app, [*export, str(page)])
    assert (done.exit_code, page.read_text()) == (2, "# Add two vectors\n")
    assert [CliRunner().invoke(app, [*export, str(tmp_path / "report")]).exit_code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("words", "one", "other"),
    [
        (["inspect", "script.py"], ["--json", "found"], ["--html", "./found"]),
        (["bench", "silu"], ["--csv=found"], ["--png", "found"]),
        (["train", "llama"], ["--save", "found"], ["--json=found"]),
        (["tour"], ["--json", "-"], ["--html", "/dev/stdout"]),
    ],
)
def test_two_results_in_one_file_are_refused(words: list[str], one: list[str], other: list[str]) -> None:
    with patch("tilesmith.storage.write_atomically", side_effect=AssertionError):
        done = CliRunner().invoke(app, [*words, *one, *other])
    named = [option.partition("=")[0] for option in (one[0], other[0])]
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tilesmith: {named[0]} and {named[1]} name the same file, ")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["check", "silu", "--json"], "Option '--json' requires an argument"),
        (["inspect", "script.py", "--json", "--html", "page.html"], "--json needs the name of a file"),
        (["profile", "--json", "--", "python", "train.py"], "--json needs the name of a file"),
    ],
    ids=" ".join,
)
def test_result_option_without_a_file_says_so(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_result_options_of_another_program_are_its_own(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["profile", "--tool", "nosuch", "--", "program", "--json", str(tmp_path)])
    assert "cannot write" not in done.output


@pytest.mark.parametrize("words", [("--version",), ("learn", "list"), ("train", "nosuch")], ids=" ".join)
def test_full_disk_and_lost_reader_have_no_traceback(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tilesmith", *words]
    with forking(), open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    if words != ("train", "nosuch"):  # which writes nothing there
        assert done.stderr == "tilesmith: cannot write standard output: No space left on device\n"
    assert done.returncode == 2
    reader, writer = os.pipe()
    os.close(reader)
    with forking():
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2, -signal.SIGPIPE)


def test_removed_current_folder_is_named(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "os.rmdir(os.getcwd())\n"
        "sys.argv = ['tilesmith', 'learn', 'list']\n"
        "from tilesmith.cli import main\n"
        "main()"
    )
    folder = tmp_path / "removed"
    folder.mkdir()
    paths = [str(Path(one).resolve()) for one in sys.path if one]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with forking():
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300,
                              env=environment)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "tilesmith: the current folder does not exist any more; change to another one\n"


def test_line_breaks_of_a_name_stay_in_one_line() -> None:
    done = CliRunner().invoke(app, ["profile", "--", "no\nsuch"])
    assert (done.exit_code, done.output) == (2, "tilesmith: no such: no such command\n")
