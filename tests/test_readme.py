"""README's examples print what README shows, and its commands, targets and links exist."""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from typer.main import get_command

from tilesmith.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)
# Line numbers of PyTorch's files move with its releases, and errors within their limit with the compiler.
VARYING = re.compile(r"(?<=\w\.py:)\d+|(?<=lines )\d+|(?<=largest error )\d+(?=% of the allowed)")


def matches(printed: str, shown: str) -> bool:
    """Return whether the output is what a page shows; `...` stands for any lines."""
    printed, shown = (VARYING.sub("N", text).strip() for text in (printed, shown))
    pattern = "\n".join("*" if line == "..." else fnmatch_escaped(line) for line in shown.splitlines())
    return fnmatch.fnmatchcase(printed, pattern)


def fnmatch_escaped(line: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", line)


def test_three_examples_show_their_output() -> None:
    assert len(EXAMPLES) == 3
    assert len(re.findall(r"```python", README)) == 3


@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=["operator", "kernel", "model"])
def test_example_prints_what_readme_shows(code: str, shown: str, request: pytest.FixtureRequest) -> None:
    if "_triton_ops" not in code:  # PyTorch defines these kernels when it finds a GPU, so their module must be fresh
        request.getfixturevalue("forked")
    # Without a GPU, so that the output is the same everywhere.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    if "_triton_ops" in code and (torch.__version__[:4], triton.__version__[:3]) != ("2.13", "3.9"):
        printed, expected = (VARYING.sub("N", text) for text in (ran.stdout, shown))
        assert printed.startswith("\n".join(expected.splitlines()[:2])), "README names the releases of the rest"
        assert printed.endswith(expected[expected.index("warning: out-of-bounds") :])
        return
    assert matches(ran.stdout, shown), f"README shows\n{shown}\nbut the example prints\n{ran.stdout}"


@pytest.mark.usefixtures("forked")
def test_python_of_the_first_ten_minutes_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    made = subprocess.run([sys.executable, "-c", "".join(blocks)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def test_comparison_of_outputs_sees_a_difference() -> None:
    assert matches("a.py:12 [x]\nmore\nlast", "a.py:34 [x]\n...")
    assert not matches("a.py:12 [x]\nmore", "a.py:12 [x]")
    assert not matches("a: 12", "a: 13")


def test_table_of_commands_is_complete() -> None:
    table = re.findall(r"^\| `tilesmith (\w+)", README, re.MULTILINE)
    commands = set(getattr(get_command(app), "commands", {}))
    assert set(table) == commands
    assert len(table) == len(commands)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"tour", "test", "docs"} <= named <= targets


def project() -> Any:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_extras_exist() -> None:
    assert set(re.findall(r"pip install '\.\[(\w+)\]'", README)) <= set(project()["optional-dependencies"])


def test_versions_are_those_of_the_package() -> None:
    least = dict(re.findall(r"(torch|triton)>=([\d.]+)", " ".join(project()["dependencies"])))
    readme = " ".join(README.split())
    questions = " ".join((ROOT / "docs" / "questions.md").read_text().split())
    assert f"is kept, from {least['torch']} on" in readme
    assert f"PyTorch {least['torch']} or later, Triton {least['triton']} to " in questions
    assert re.findall(r"Triton ([\d.]+ to [\d.]+)", readme) == re.findall(r"Triton ([\d.]+ to [\d.]+)", questions)


def test_number_of_operators_is_right() -> None:
    from tilesmith.ops import SPECS

    assert f"`ts.ops` has {len(SPECS)} operators" in README


def test_number_of_exercises_is_right() -> None:
    from tilesmith.workshop.course.catalogue import BUILT_IN

    number = len(list(BUILT_IN.glob("*/exercise.toml")))
    assert f"`tilesmith learn` has {number} exercises" in " ".join(README.split())


FIGURES = re.compile(r"<!-- figures: .*?<!-- end figures -->", re.DOTALL)
AMOUNT = re.compile(r"(\d[\d.,]*\d) (ms|µs|GiB|MiB)\b")


@pytest.mark.parametrize("page", ["README.md", "docs/questions.md"])
def test_figures_in_sentences_are_those_of_the_tables(page: str) -> None:
    """`make figures` writes tables and lists; sentences that repeat a figure must follow."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    stored = {found for one in pages for table in FIGURES.findall(one.read_text()) for found in AMOUNT.findall(table)}
    sentences = re.sub(r"^```.*?^```", "", FIGURES.sub("", (ROOT / page).read_text()), flags=re.MULTILINE | re.DOTALL)
    said = set(AMOUNT.findall(" ".join(sentences.split())))
    assert said
    assert said <= stored


def test_number_of_models_in_which_compile_is_ahead_is_right() -> None:
    timed = [json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks/results/models").glob("*-h200.json"))]
    steps = [{row["version"]: row["milliseconds"] for row in one["rows"]} for one in timed if "failed" in one]
    eagerly = [one for one in steps if one["compile"] < one["tilesmith"]]
    compiled = [one for one in steps if one["compile"] < one.get("tilesmith-compile", one["tilesmith"])]
    words = {0: "none", 1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
    said = (
        f"torch.compile is ahead of the eager patch in {words[len(eagerly)]} of {words[len(steps)]} models, "
        f"of the compiled patch in {words[len(compiled)]}"
    )
    if not eagerly and not compiled:
        lead = min(one["compile"] / max(one["tilesmith"], one.get("tilesmith-compile", 0.0)) for one in steps) - 1
        said = (
            f"The patch is ahead of torch.compile in all {words[len(steps)]} models, eager and compiled, "
            f"by {100 * lead:.0f} % at least"
        )
    for page in ("README.md", "docs/questions.md"):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", " ".join((ROOT / page).read_text().split()))
        assert said in text, (page, said)


def test_statements_agree_with_the_docs() -> None:
    """One statement about the same thing everywhere."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {page.name: " ".join(page.read_text().split()) for page in pages}
    launches = {name: found for name, text in texts.items() if (found := re.findall(r"(\w+) launch\w* update", text))}
    assert {word.lower() for found in launches.values() for word in found} <= {"two"}, launches
    for name in ("README.md", "operators.md"):
        assert re.search(r"PyTorch computes\W.{0,60}`torch\.func|`torch\.func.{0,120}PyTorch computes", texts[name]), (
            name
        )
