"""`tilesmith judge` and `tilesmith mcp`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tilesmith
from tilesmith.cli import app
from tilesmith.cli.terminal import console

pytestmark = pytest.mark.usefixtures("forked")
ZOO = Path(__file__).parents[1] / "judge" / "zoo"
TASK = ZOO / "tasks" / "softmax.py"
PLAIN = ZOO / "honest" / "softmax" / "plain.py"
CHEAT = ZOO / "cheats" / "softmax" / "torch_softmax.py"
SUBMISSION = ZOO.parent / "bridges" / "scale_rows" / "submission.py"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["judge", *map(str, arguments)])


def test_judge_writes_json_and_page(tmp_path: Path) -> None:
    ended = run(TASK, PLAIN, "--seed", 5, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert ended.exit_code == 0, ended.output
    assert "plain: pass" in ended.output
    assert json.loads((tmp_path / "a.json").read_text())["outcome"] == "pass"
    assert "Judged: softmax" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("columns", [80, 120])
def test_facts_of_kernels_are_whole_on_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", columns)
    lines = run(TASK, PLAIN, "--seed", 5, "--no-times", "--dtype", "float32").output.splitlines()
    assert not [line for line in lines if "…" in line]
    start = next(place for place, line in enumerate(lines) if " launch" in line)
    heading = next(place for place, line in enumerate(lines) if line.startswith("target"))
    words = " ".join(line.strip() for line in lines[start:heading])
    assert re.fullmatch(r"softmax_kernel: 1 launch, .* moved, .* sectors \(.* ideal\), bound by \w+", words)
    assert lines[heading].split() == ["target", "registers", "spilled", "occupancy", "least", "µs"]
    assert [line.split()[0] for line in lines[heading + 1 : heading + 3]] == ["cuda:90", "hip:gfx942"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "candidate: fail at loads: syntax error: invalid syntax (candidate.py:1)"),
        ("import torch\n", "candidate: fail at loads: the candidate defines no function named softmax or"),
        ("def softmax(x):\n    raise NotImplementedError\n", "] NotImplementedError (candidate.py:2)"),
    ],
)
def test_reason_names_its_place_once(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text(text)
    ended = run(TASK, tmp_path / "candidate.py", "--seed", 5, "--no-times", "--dtype", "float32")
    last = ended.output.splitlines()[-1]
    assert words in last
    assert last.count("candidate.py:") == words.count("candidate.py:")


def test_file_that_cannot_be_split_gets_advice(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("SPEC = Spec(name='f', op=Module().forward, reference=f)\n")
    assert "define a function at the top level that calls it" in run(file).output
    file.write_text("def f(:\n")
    assert run(file).output.strip().endswith("task.py:1: syntax error: invalid syntax")


def test_judge_fails_a_cheat_with_its_reason() -> None:
    ended = run(TASK, CHEAT, "--seed", 5)
    assert ended.exit_code == 1
    assert "PyTorch computes aten::_softmax" in ended.output


def test_judge_of_a_series_goes_on(tmp_path: Path) -> None:
    for one in (PLAIN, CHEAT, ZOO / "cheats" / "softmax" / "uniform.py"):
        (tmp_path / one.name).write_text(one.read_text())
    lines = tmp_path / "verdicts.jsonl"
    first = run(TASK, "--each", tmp_path, "--jsonl", lines, "--seed", 5)
    second = run(TASK, "--each", tmp_path, "--jsonl", lines, "--seed", 5)
    assert first.exit_code == second.exit_code == 1
    assert "1 of 3 candidates pass" in first.output
    assert len(lines.read_text().splitlines()) == 3


def test_judge_takes_an_operator_as_task() -> None:
    ended = run("silu", ZOO / "honest" / "add" / "plain.py", "--dtype", "float32")
    assert ended.exit_code == 1
    assert "TypeError" in ended.output
    assert "The task calls silu(x)." in " ".join(ended.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py", PLAIN], "no such file; a task is an operator, a file with a SPEC,"),
        ([TASK, "nothing.py"], "no such file or folder"),
        ([TASK, Path(__file__).parents[2] / "LICENSE"], "LICENSE: is not a Python file: its name must end in .py"),
        (["softmax"], "give a candidate"),
        ([TASK, PLAIN, "--dtype", "fp32,int4"], "--dtype 'int4' is not one of"),
        ([TASK, PLAIN, "--layout", "odd"], "--layout 'odd' is not one of"),
        ([TASK, PLAIN, "--gradients", "some"], "--gradients 'some' is not one of"),
        ([TASK, PLAIN, "--target", "vax"], "--target: unknown target 'vax"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[object], message: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr


@pytest.mark.slow
def test_agents_judge_over_mcp() -> None:
    mcp = pytest.importorskip("mcp")
    if not hasattr(mcp, "Client"):
        pytest.skip("the client of the SDK before 2.0 is another")
    found = asyncio.run(_conversation(mcp))
    assert {"judge", "check", "inspect", "bench", "explain"} <= set(found["tools"])
    assert found["judged"]["reasons"][0]["kind"] == "torch-computes"
    assert "kernels" in found["explained"]["meaning"]
    assert "is not one of" in found["unknown"]["error"]
    assert "no such file" in found["missing"]["error"]
    for name in ("outside", "outside_check"):
        assert "outside of the folder" in found[name]["error"]
    for name in ("null", "long", "long_check"):
        assert "cannot be a path" in found[name]["error"]
    assert "not both" in found["both"]["error"]
    assert found["own"]["reasons"][0]["kind"] == "torch-computes"  # the operator of the task's file
    assert found["empty"]["reasons"][0]["kind"] == "no-function"
    assert found["submission"]["outcome"] == "pass", found["submission"]["reasons"]


async def _conversation(mcp: Any) -> dict[str, Any]:
    source = str(Path(tilesmith.__file__).parents[1])
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "tilesmith", "mcp", "--folder", str(ZOO.parent)],
        env={**os.environ, "PYTHONPATH": source},
    )
    async with mcp.Client(server) as client:

        async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            content: dict[str, Any] = json.loads(answer.content[0].text)
            return content

        return {
            "tools": [tool.name for tool in (await client.list_tools()).tools],
            "judged": await ask("judge", task="zoo/tasks/softmax.py", source=CHEAT.read_text(), seed=5),
            "explained": await ask("explain", kind="torch-computes"),
            "unknown": await ask("explain", kind="nonsense"),
            "missing": await ask("judge", task="zoo/tasks/softmax.py", candidate="nothing.py"),
            "outside": await ask("judge", task="zoo/tasks/softmax.py", candidate="../../README.md"),
            "outside_check": await ask("check", what="/etc/passwd"),
            "null": await ask("judge", task="softmax", candidate="a\0b"),
            "long": await ask("judge", task="softmax" * 1000, source="x = 1"),
            "long_check": await ask("check", what="softmax" * 50_000),
            "both": await ask("judge", task="softmax", candidate="a.py", source="x = 1"),
            "own": await ask("judge", task="zoo/tasks/softmax.py"),
            "empty": await ask("judge", task="zoo/tasks/softmax.py", source="x = 1"),
            "submission": await ask("judge", task="bridges/scale_rows", source=SUBMISSION.read_text()),
        }
