"""`tilesmith bench` where there is no GPU: predictions, refusals, files."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from tilesmith.cli import app

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
SMALL = ["--rows", "4", "--cols", "64"]
FORKED = pytest.mark.usefixtures("forked")
WRONG = """
import torch
from tilesmith.spec import Case, Cost, Spec, Work

SPEC = Spec(
    name="wrong", op=lambda x: x, reference=lambda x: 2 * x, dtypes=(torch.float32,), differentiable=False,
    cases=[Case("small", rows=4)], cost=lambda case, dtype: Cost(Work(8 * case.rows, case.rows)),
    make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, dtype=dtype, device=device)},
)
"""
MIXED_TYPES = """
import torch
import triton
import triton.language as tl
from tilesmith.spec import Case, Cost, Spec, Work

@triton.jit
def k(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    total = 0
    for _ in range(n):
        total = total + 1.5
    tl.store(y_ptr + places, x, mask=places < n)

def copy(x):
    y = torch.empty_like(x)
    k[(1,)](x, y, x.numel(), BLOCK=16)
    return y

SPEC = Spec(
    name="copy", op=copy, reference=lambda x: x.clone(), dtypes=(torch.float32,), differentiable=False,
    cases=[Case("small", rows=4)], cost=lambda case, dtype: Cost(Work(8 * case.rows, case.rows)),
    make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, dtype=dtype, device=device)},
)
"""


def bench(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@FORKED
def test_predicts_and_checks_small_cases(tmp_path: Path) -> None:
    files = [tmp_path / "result.json", tmp_path / "result.csv"]
    result = bench("silu", *SMALL, "--mode", "fwd,bwd", "--json", files[0], "--csv", files[1])
    assert result.exit_code == 0, result.output
    assert "predicted, not measured" in result.output
    content = json.loads(files[0].read_text())
    assert [(row["mode"], row["kind"], row["checked"], row["device_ms"]) for row in content["rows"]] == [
        ("fwd", "predicted", True, None),
        ("bwd", "predicted", True, None),
    ]
    assert content["rows"][0]["floor_ms"] == pytest.approx(2 * 4 * 64 * 2 / 4.8e9)
    assert "predicted" in content["device"]
    assert [row["mode"] for row in csv.DictReader(files[1].open())] == ["fwd", "bwd"]


@FORKED
@pytest.mark.parametrize(("name", "tb_per_s"), [("a100", 2.039), ("4090", 1.008)])
def test_predicts_for_a_named_device(name: str, tb_per_s: float, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert bench("silu", "--cases", "large", "--mode", "fwd", "--device", name, "--json", path).exit_code == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["floor_ms"] == pytest.approx(row["bytes"] / tb_per_s / 1e9, rel=1e-3)
    assert row["checked"] is None, "too large for the interpreter"


@FORKED
def test_wrong_operator_gets_no_time_and_status_one(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    result = bench(path)
    assert result.exit_code == 1
    assert "refused, because the result is wrong" in " ".join(result.output.split())


@FORKED
def test_kernel_that_runs_in_the_interpreter_but_does_not_compile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed_types.py"
    path.write_text(MIXED_TYPES)
    result = bench(path)
    assert result.exit_code == 1
    assert "k does not compile for cuda:90" in " ".join(result.output.split())


@FORKED
def test_sweep_of_a_file_shows_registers_of_each_point(tmp_path: Path) -> None:
    path, output = tmp_path / "copy.py", tmp_path / "result.json"
    text = MIXED_TYPES.replace("total = total + 1.5", "total += 1").replace("def copy(x)", "def copy(x, WIDTH=16)")
    path.write_text(text.replace("BLOCK=16)", "BLOCK=WIDTH)"))
    result = bench(path, "--sweep", "WIDTH=16,32", "--json", output)
    assert result.exit_code == 0, result.output
    for row in json.loads(output.read_text())["rows"]:
        (launch,) = row["launches"]
        assert (launch["kernel"], launch["constants"]["BLOCK"]) == ("k", row["config"]["WIDTH"])
        assert launch["registers"] > 0
    assert "reaches no kernel" not in result.output


@FORKED
def test_sweep_shows_registers_and_occupancy_of_each_point(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench(
        "silu", *SMALL, "--mode", "fwd", "--sweep", "BLOCK_SIZE=64,128", "--sweep", "num_warps=1", "--json", path
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["launches"][0]["constants"]["BLOCK_SIZE"] for row in rows] == [64, 128]
    assert [row["launches"][0]["num_warps"] for row in rows] == [1, 1]
    assert all(row["launches"][0]["registers"] > 0 and row["checked"] for row in rows)


@FORKED
def test_a_sweep_takes_the_largest_case_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench("silu", "--mode", "fwd", "--sweep", "BLOCK_SIZE=1024,2048", "--json", path)
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert [(row["case"], row["config"]["BLOCK_SIZE"]) for row in rows] == [("large", 1024), ("large", 2048)]
    said = " ".join(result.output.split())
    assert "silu: swept on large, the largest of 5 cases; --cases chooses others" in said
    assert "the sweep's points were checked on one, odd, past-a-block" in said
    assert "8 programs were sampled" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--sweep", "BLOCK=1"],
            "silu has no kernel configuration BLOCK; it has num_warps, num_stages, ROWS, BLOCK_SIZE",
        ),
        (["--sweep", "BLOCK_SIZE"], "expected FIELD=VALUE"),
        (["--device", "abacus"], "--device: unknown device 'abacus'; known are h200"),
        (["--cases", "huge"], "silu has no case 'huge'"),
        (["--size", "rows"], "--size 'rows': expected NAME=N"),
        (["--size", "depth=3"], "not depth"),
        (["--size", f"rows={10**20}"], "of at most 12 digits"),
        (["--rows", str(10**20)], "of at most 12 digits"),
        (["--rows", "4", "--size", "rows=8"], "--size: rows is given twice"),
        (["--mode", ""], "--mode '' names nothing"),
        (["--dtype", ","], "--dtype ',' names nothing"),
        (["--against", " "], "--against ' ' names nothing"),
        (["--warm", "--device", "h200"], "--warm and --measure-limits need a GPU"),
        (["--measure-limits", "--device", "h200"], "--warm and --measure-limits need a GPU"),
        (["--mode", "up"], "--mode: up is not one of"),
        (["--dtype", "int8"], "silu has no dtype int8"),
        (["--baseline", "old.json"], "--baseline compares measured times"),
    ],
)
def test_wrong_usage_prints_one_line(arguments: list[str], complaint: str) -> None:
    result = bench("silu", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_more_drawn_cases_than_memory_holds_are_refused() -> None:
    result = bench("silu", "--draw", str(10**20), "--list")
    assert result.exit_code == 2
    assert "Invalid value for '--draw'" in result.stderr


@FORKED
def test_each_operator_uses_the_cases_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench("silu", "transpose", "--cases", "large,larger", "--mode", "fwd", "--device", "h200", "--json", path)
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert {(row["op"], row["case"]) for row in rows} == {
        ("silu", "large"), ("transpose", "large"), ("transpose", "larger"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "complaint"),
    [
        ("large,huge", "--cases: none of silu, transpose has a case huge"),
        ("larger", "silu has no case 'larger'"),
    ],
)
def test_a_case_that_no_operator_has_or_an_operator_without_any_is_refused(cases: str, complaint: str) -> None:
    result = bench("silu", "transpose", "--cases", cases)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_unknown_operator_is_an_error() -> None:
    assert "is neither an operator" in bench("nonsense").stderr


@FORKED
def test_png_without_matplotlib_prints_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = bench("silu", *SMALL, "--mode", "fwd", "--png", tmp_path / "chart.png")
    assert result.exit_code == 2
    assert "--png: a PNG needs matplotlib" in result.stderr


@FORKED
def test_unwritable_file_is_refused_before_any_work() -> None:
    result = bench("silu", *SMALL, "--mode", "fwd", "--json", "/proc/nowhere/result.json")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert "predicted, not measured" not in result.output


@FORKED
def test_a_sweep_counts_memory_transactions(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    size = ["--rows", "8", "--cols", "1024"]
    result = bench("silu", *size, "--mode", "fwd", "--sweep", "BLOCK_SIZE=64,1024", "--json", path)
    assert result.exit_code == 0, result.output
    launches = [row["launches"][0] for row in json.loads(path.read_text())["rows"]]
    moved = 2 * 8 * 1024 * 2 // 32
    assert all(launch["ideal_sectors"] <= launch["sectors"] for launch in launches)
    assert launches[1]["sectors"] == moved
    assert f"{moved:,}" in result.output


def test_survey_lists_its_cases_as_json_lines() -> None:
    result = bench("softmax", "transpose", "--draw", "2", "--seed", "7", "--list")
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"operator": "softmax", "rows": 3, "columns": 3072, "dtype": "bfloat16"},
        {"operator": "softmax", "rows": 42642, "columns": 37770, "dtype": "float16"},
        *(json.loads(line) for line in bench("transpose", "--draw", "2", "--seed", "7", "--list").stdout.splitlines()),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--draw", "2"], "a survey times kernels on a GPU, and this machine has none"),
        (["--list"], "--seed, --jobs and --list need --draw N"),
        (["--draw", "2", "--list", "--against", "nobody"], "--against: nobody is not one of torch, compile, liger"),
        (["--draw", "2", "--dtype", "float32", "--rows", "3"], "so --rows, --dtype cannot be given with it"),
        (["attention_varlen", "--draw", "2", "--list"], "attention_varlen has no distribution of cases"),
    ],
)
def test_survey_refuses_in_one_line(arguments: list[str], complaint: str) -> None:
    result = bench("softmax", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
