"""Where Triton is missing, as on macOS and Windows: commands that need none work, the others say so in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

Outcomes = dict[tuple[str, ...], tuple[object, str, str]]  # exit status, standard error and output of each command

# Runs command after command in one process, since PyTorch takes a second to import.
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class WithoutTriton:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")

sys.meta_path.insert(0, WithoutTriton())
from tilesmith.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv, out, err = ["tilesmith", *words], io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException as error:
        status, err = repr(error), io.StringIO()
    print(json.dumps([words, status, err.getvalue(), out.getvalue()]))
"""
NEED_TRITON = [
    ["ops"], ["tour"], ["check", "silu"], ["judge", "silu", "script.py"], ["inspect", "script.py"],
    ["bench", "silu", "--device", "h200"], ["tune", "silu"], ["train", "llama", "--num-steps", "1"],
    ["compare", "llama", "--num-steps", "1"], ["debug", "llama"], ["learn", "check", "vector-add"],
    ["learn", "quiz", "vector-add"], ["learn", "show", "vector-add"],
    ["learn", "--html", "site"],
]  # fmt: skip
NEED_NONE = [
    ["--version"], ["--help"], ["doctor"], ["learn", "list"], ["learn", "start", "vector-add"],
    ["learn", "hint", "vector-add"], ["learn", "reset", "vector-add"],
]  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder: Path = tmp_path_factory.mktemp("without-triton")
    (folder / "script.py").write_text("print(1)\n")
    commands = json.dumps([*NEED_NONE, *NEED_TRITON])
    done = subprocess.run([sys.executable, "-c", PROGRAM, commands], cwd=folder, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300, check=True)  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {tuple(words): (status, text, output) for words, status, text, output in lines}


@pytest.mark.parametrize("words", NEED_NONE, ids=" ".join)
def test_commands_that_need_no_triton_work(outcomes: Outcomes, words: list[str]) -> None:
    status, text, _ = outcomes[tuple(words)]
    assert status == 0, text


def test_doctor_says_that_triton_is_missing(outcomes: Outcomes) -> None:
    assert "Triton is not installed" in outcomes["doctor",][2]


@pytest.mark.parametrize("words", NEED_TRITON, ids=" ".join)
def test_commands_that_need_triton_say_so(outcomes: Outcomes, words: list[str]) -> None:
    status, text, _ = outcomes[tuple(words)]
    assert status in (1, 2), status
    (line,) = text.strip().splitlines()
    assert line.startswith("tilesmith: ")
    assert "triton" in line.lower()
    assert "not installed" in line


def test_the_package_imports_in_a_tenth_of_a_second_without_torch() -> None:
    program = (
        "import sys, time; start = time.process_time(); import tilesmith; print(time.process_time() - start); "
        "print(sorted({'torch', 'triton', 'numpy', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.splitlines()
    assert float(seconds) < 0.1
    assert heavy == "[]"
