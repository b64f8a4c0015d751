"""Every example runs at a small size, every notebook runs from top to bottom, and the magics show their results."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.lab.notebook import CellError, MagicError, check_cell, inspect_cell, load_ipython_extension

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
RUNS = {
    "finetune_hugging_face.py": "--steps 3 --hidden 64 --layers 1 --batch 2 --length 16",
    "evoformer_block.py": "--steps 12 --residues 6 --sequences 8 --channels 16",
    "own_kernel.py": "",
    "custom_autograd.py": "",
    "dropout.py": "",
}
TESTED_BY_PYTEST = "inspect_in_ci.py"


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [name, *RUNS[name].split()])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*RUNS, TESTED_BY_PYTEST}
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"examples/{path.relative_to(EXAMPLES)}" in listed for path in [*EXAMPLES.glob("*.py"), *NOTEBOOKS])


def test_fine_tuning_gives_the_same_losses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("finetune_hugging_face.py", monkeypatch, capsys)
    assert "LlamaForCausalLM: norm (3), rotary (1), mlp (1), loss (1), attention (1) by Tilesmith" in printed
    difference = float(printed.split("largest difference of a loss: ")[1].split()[0])
    assert difference < 1e-3


def test_evoformer_block_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("evoformer_block.py", monkeypatch, capsys)
    first, last = printed.splitlines()[-1].removeprefix("loss ").split(" on ")[0].split(" → ")
    assert float(last) < float(first)


def test_own_kernel_is_right_and_coalesced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("own_kernel.py", monkeypatch, capsys)
    assert "scaled_residual: right" in printed
    assert "of the moved bytes are used" in printed
    assert "large 16384 × 4096" in printed


def test_custom_autograd_is_right() -> None:
    found = ts.lab.check(EXAMPLES / "custom_autograd.py", cases=["odd"], dtypes=["float32", "bfloat16"], device="cpu")
    assert found.passed, found
    assert {one.what for one in found} == {"forward", "gradient x"}


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("tl.rand(seed, offsets)", "tl.rand(seed, offsets)", set()),
        ("tl.rand(seed, offsets)", "tl.rand(seed, offsets + 1)", {"forward", "gradient x"}),
        ("tl.rand(seed, offsets)", "tl.rand(7, offsets)", {"forward", "gradient x"}),
        ("context.probability, context.seed), None", "context.probability, context.seed + 1), None", {"gradient x"}),
    ],
    ids=["right", "other offsets", "other seed", "other seed in the backward"],
)
def test_dropout_is_compared_element_by_element(right: str, wrong: str, what: set[str], tmp_path: Path) -> None:
    text = (EXAMPLES / "dropout.py").read_text()
    assert text.count(right) >= 1
    copy = tmp_path / "dropout.py"
    copy.write_text(text.replace(right, wrong, 1))
    found = ts.lab.check(copy, cases=["odd"], dtypes=["float32"], device="cpu")
    assert {one.what for one in found.failures} == what


@pytest.mark.usefixtures("forked")
def test_ci_example_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / TESTED_BY_PYTEST)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=EXAMPLES)
    assert ran.returncode == 0, ran.stdout
    assert "5 passed" in ran.stdout


@pytest.fixture
def shell() -> Iterator[Any]:
    """A shell of IPython in this process, as Jupyter runs cells."""
    interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
    main = sys.modules["__main__"]
    made = interactive.InteractiveShell()
    made.user_ns["__name__"] = "__main__"
    yield made
    made.run_line_magic("reset", "-f")
    sys.modules["__main__"] = main  # the shell put a module of its own there


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells), "no outputs stored"
    for cell in cells:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
    printed = capsys.readouterr().out
    assert "SyntaxError" not in printed
    if path.stem == "first_kernel":
        assert "careless_kernel" in printed or "out" in printed
        assert not shell.user_ns["found"].passed, "the mistake is found"


def test_magics_are_registered(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load_ipython_extension(shell)
    shell.run_cell("%%inspect\nx = 1 + 1\nprint('said')\n'the value of the last line, such as a launch'")
    printed = capsys.readouterr().out
    assert "the_cell launched no Triton kernel" in printed
    assert "said" in printed
    assert "the value of the last line" not in printed, "the magic's own result is the cell's"
    assert shell.user_ns["x"] == 2, "the cell's names stay"


def test_wrong_use_of_a_magic_is_one_line(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load_ipython_extension(shell)
    shell.run_cell("%%check\nSPEC = 3")
    assert "%%check: the cell defines no SPEC" in capsys.readouterr().out
    shell.run_cell("%%inspect --tarjet cuda:90\n1")
    assert "%%inspect: unrecognized arguments: --tarjet" in capsys.readouterr().out
    shell.run_cell("%%inspect --target banana\n1")
    assert capsys.readouterr().out.startswith("%%inspect: target: unknown target 'banana:'")
    shell.run_cell("%%check --case 'half\n1")
    assert "%%check: No closing quotation" in capsys.readouterr().out
    with pytest.raises(MagicError):
        check_cell(shell, "", "x = 1")
    with pytest.raises(CellError, match="ZeroDivisionError: division by zero"):
        inspect_cell(shell, "", "1 / 0")


@pytest.mark.parametrize("magic", ["check", "inspect"])
@pytest.mark.parametrize(("cell", "error"), [("1 / 0", "division by zero"), ("x = = 2", "invalid syntax")])
def test_error_of_a_cell_is_shown_once(
    magic: str, cell: str, error: str, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    load_ipython_extension(shell)
    assert not shell.run_cell(f"%%{magic}\n{cell}").success
    printed = capsys.readouterr().out
    assert printed.count(error) == 1
    assert "notebook.py" not in printed
