"""Every `--json` file follows its published JSON Schema; so do the stored results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tilesmith.cli import app
from tilesmith.lab.bench.survey.drawing import draw
from tilesmith.lab.bench.survey.survey_result import Direction, Outcome, content
from tilesmith.lab.schemas import NAMES, schema

jsonschema: Any = pytest.importorskip("jsonschema")  # a machine with a GPU may not have it

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KERNELS = Path(__file__).parents[1] / "kernels"
COMPARISONS = ("llama-h200.json", "llama_bfloat16-h200.json", "openfold-h200.json")


def commands_with_json(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the name of each command that has `--json`; the models of `train`, `compare` and `debug` share a format."""
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from commands_with_json(one, (*words, name))
    elif any("--json" in parameter.opts for parameter in command.params):
        yield words[0] if words[-1] in ("llama", "openfold") else "-".join(words)


def problems(command: str, content: Any) -> list[str]:
    found = jsonschema.Draft202012Validator(schema(command)).iter_errors(content)
    return [f"{one.json_path}: {one.message}" for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_and_says_which_keys_stay(name: str) -> None:
    content = schema(name)
    jsonschema.Draft202012Validator.check_schema(content)
    described = content["items"] if content["type"] == "array" else content
    assert described["required"]


def test_every_command_that_writes_json_has_a_schema() -> None:
    assert set(commands_with_json(get_command(app))) == set(NAMES)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("check", ["check", "silu", "--case", "odd", "--dtype", "float32", "--layout", "contiguous"]),
        ("ops", ["ops"]),
        ("doctor", ["doctor"]),
        ("bench", ["bench", "silu", "--device", "h200", "--rows", "4", "--cols", "64"]),
        ("learn-list", ["learn", "list"]),
    ],
    ids=["check", "ops", "doctor", "bench", "learn-list"],
)
def test_command_writes_what_its_schema_says(command: str, arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    ran = CliRunner().invoke(app, [*arguments, "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    content = json.loads(file.read_text())
    assert problems(command, content) == []
    assert isinstance(content, list) or content["schema"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_stored_benchmark_follows_the_schema(path: Path) -> None:
    assert problems("bench", json.loads(path.read_text())) == []


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "surveys").glob("*.json")), ids=lambda path: path.stem)
def test_stored_survey_follows_the_schema(path: Path) -> None:
    assert problems("bench", json.loads(path.read_text())) == []


def test_survey_that_grows_follows_the_schema() -> None:
    (case,) = draw("softmax", seed=3, count=1)
    wrong = Outcome("softmax", 0, "a case", case, wrong="element [0] is 1, but must be 2")
    right = Outcome("softmax", 1, "a case", case, directions={"fwd": Direction({"torch": 0.5}, bytes=8, auto="torch")})
    survey = content([wrong, right], seed=3, drawn=2, about={}, partial=True)
    assert problems("bench", survey) == []
    for key in ("cases", "seed"):
        assert problems("bench", {name: value for name, value in survey.items() if name != key})
    survey["cases"][1]["directions"]["fwd"]["device_ms"] = "fast"
    assert problems("bench", survey)


@pytest.mark.parametrize("name", COMPARISONS)
def test_stored_comparison_follows_the_schema(name: str) -> None:
    assert problems("compare", json.loads((RESULTS / "models" / name).read_text())) == []


def test_a_missing_key_and_a_wrong_type_are_seen() -> None:
    right = {"tilesmith": "1", "schema": 1, "results": []}
    assert problems("check", right) == []
    assert problems("check", {**right, "schema": 2})
    assert problems("check", {**right, "results": [{"op": "silu"}]})
    assert problems("check", {"tilesmith": "1", "schema": 1})
