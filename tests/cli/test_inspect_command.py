"""`tilesmith inspect` as it is called from a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilesmith.cli import app

FORKED = pytest.mark.usefixtures("forked")
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(y_ptr + places, tl.load(x_ptr + places + SHIFT, mask=mask), mask=mask)

SHIFT = tl.constexpr(%d)
x = torch.ones(1000, device="cuda")
y = torch.empty_like(x)
shift_kernel[(4,)](x, y, 1000, BLOCK=256)
"""


SPEC = """
from tilesmith.spec import Case, Spec

def op(x):
    shift_kernel[(triton.cdiv(x.numel(), 256),)](x, torch.empty_like(x), x.numel(), BLOCK=256)
    return x

def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.n, dtype=dtype, device=device)}

SPEC = Spec(name="op", op=op, reference=lambda x: x, make_inputs=make_inputs, differentiable=False,
            cases=[Case("one", n=1), Case("odd", n=1000)])
"""


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    script = tmp_path / "good.py"
    script.write_text(KERNEL % 0)
    return script


@FORKED
def test_a_good_kernel_is_described(good: Path, tmp_path: Path) -> None:
    result = run(good, "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert "shift_kernel  good.py:6" in result.output
    assert "cuda:90" in result.output
    assert "hip:gfx942" in result.output
    assert "\x1b" not in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) >= {"tilesmith", "script", "kernels"}
    (kernel,) = found["kernels"]
    assert (kernel["name"], kernel["grid"], kernel["launches"]) == ("shift_kernel", [4, 1, 1], 1)
    assert kernel["programs_traced"] == 4
    assert kernel["constants"] == {"BLOCK": 256}
    load = next(one for one in kernel["accesses"] if one["kind"] == "load")
    assert set(load) >= {
        "kind", "line", "argument", "element_bytes", "requests", "sectors_per_request", "ideal_sectors_per_request",
        "efficiency", "bytes", "unique_bytes", "accesses_per_element", "masked_fraction", "vector_bytes",
    }  # fmt: skip
    assert (load["argument"], load["element_bytes"], load["bytes"], load["unique_bytes"]) == ("x_ptr", 4, 4000, 4000)
    assert set(kernel["targets"]) == {"cuda:90", "hip:gfx942"}
    assert set(kernel["targets"]["cuda:90"]) >= {
        "registers", "spill_bytes", "shared_bytes", "occupancy", "limited_by", "tensor_cores", "predicted_floor_us",
    }  # fmt: skip
    assert kernel["bound"] == "memory"


@FORKED
def test_error_finding_exits_with_one(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(KERNEL % 1)
    result = run(script, "--target", "cuda:80", "--json", tmp_path / "found.json")
    assert result.exit_code == 1
    assert "error: out-of-bounds at bad.py:10" in result.output
    assert "x_ptr[1000], which has 1000 elements" in result.output
    (finding,) = [
        one for one in json.loads((tmp_path / "found.json").read_text())["kernels"][0]["findings"]
        if one["severity"] == "error"
    ]  # fmt: skip
    assert set(finding) >= {"kind", "severity", "line", "program", "message", "advice"}
    assert (finding["kind"], finding["line"], finding["program"]) == ("out-of-bounds", 10, [3, 0, 0])


@FORKED
def test_html_option_writes_a_page(good: Path, tmp_path: Path) -> None:
    result = run(good, "--target", "cuda:90", "--html", tmp_path / "found.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "found.html").read_text(encoding="utf-8")
    assert page.lstrip().startswith("<!doctype html>")
    assert "shift_kernel" in page
    assert 'id="kernel-1-line-10" class="costs"' in page


@FORKED
def test_asm_option_prints_text_by_source_line(good: Path) -> None:
    result = run(good, "--target", "cuda:90", "--asm", "ptx")
    assert result.exit_code == 0, result.output
    assert "10: tl.store(y_ptr" in result.output
    assert "ld.global" in result.output


@FORKED
@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("print('hello')", 2, "launched no Triton kernel: nothing to inspect"),
        ("def test_hello():\n    pass\n", 2, "pytest runs its tests, as in tilesmith inspect -- pytest"),
        ("def broken(:", 2, "is not Python: SyntaxError"),
        ("import a_module_that_is_not_there", 2, "No module named 'a_module_that_is_not_there'"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 1, "was killed by SIGKILL"),
        ("raise ValueError('on purpose')", 1, "failed: ValueError: on purpose"),
        ("import sys\nsys.exit(3)", 1, "ended with status 3"),
    ],
)
def test_failing_script_gets_one_line_and_a_status(tmp_path: Path, text: str, status: int, said: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    result = run(script)
    assert result.exit_code == status, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tilesmith:")]
    assert said in line


@FORKED
def test_endless_script_is_stopped_after_the_timeout(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("while True: pass")
    result = run(script, "--timeout", 2)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tilesmith:")]
    assert "was still running after 2 s" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "cuda:banana"], "unknown target"),
        (["--programs", "some"], "--programs"),
        (["--asm", "fortran"], "--asm"),
        (["--device", "abacus"], "unknown device"),
        (["--config", "3"], "--config 3: no kernel of the script has an autotuner"),
        (["--config", "BLOCK=64"], "--config BLOCK=64: no kernel of the script has an autotuner"),
        (["--config", "all"], "--config all: no kernel of the script has an autotuner"),
    ],
)
def test_wrong_options_are_refused(good: Path, options: list[str], said: str) -> None:
    result = run(good, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "nowhere.py")
    assert result.exit_code == 2
    assert "is not a file" in result.stderr


def test_a_folder_that_python_cannot_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain_folder").mkdir()
    result = run("plain_folder")
    assert result.exit_code == 2
    assert "plain_folder is not a file, nor a module" in result.stderr


def script_with_loop(folder: Path, condition: str, step: int) -> tuple[Path, int]:
    """Return a script whose kernel has this loop, and the loop's line."""
    script = folder / "endless.py"
    before, after = (KERNEL % 0).split("    mask =", 1)
    script.write_text(f"{before}    while {condition}:\n        places += {step}\n    mask ={after}")
    return script, before.count("\n") + 1


@FORKED
def test_a_loop_that_changes_nothing_is_named(tmp_path: Path) -> None:
    script, line = script_with_loop(tmp_path, "tl.program_id(0) < 1", 1)
    result = run(script)
    assert result.exit_code == 1
    assert f"endless.py:{line}" in result.output
    assert "this loop never ends" in result.output


@FORKED
def test_a_kernel_that_never_ends_is_named(tmp_path: Path) -> None:
    script, line = script_with_loop(tmp_path, "tl.max(places, 0) != -1", 2)
    result = run(script, "--timeout", 2)
    assert result.exit_code == 1
    named = [f"after 2 s in kernel shift_kernel (endless.py:{one}) and was stopped" for one in (line, line + 1)]
    assert any(one in result.stderr for one in named), result.stderr


@FORKED
@pytest.mark.parametrize(("options", "programs", "note"), [
    ((), 4, "op was called with case odd; --case names another"), (("--case", "one"), 1, "op was called with case one")
])  # fmt: skip
def test_a_case_of_a_spec_is_chosen_and_named(
    tmp_path: Path, options: tuple[str, ...], programs: int, note: str
) -> None:
    script, found = tmp_path / "op.py", tmp_path / "found.json"
    script.write_text((KERNEL % 0).partition("x = torch.ones")[0] + SPEC)
    result = run(script, *options, "--json", found)
    assert result.exit_code == 0, result.output
    assert note in result.output
    written = json.loads(found.read_text())
    assert (written["notes"], written["kernels"][0]["programs"]) == ([note], programs)


@FORKED
def test_an_unknown_case_is_refused(tmp_path: Path, good: Path) -> None:
    script = tmp_path / "op.py"
    script.write_text((KERNEL % 0).partition("x = torch.ones")[0] + SPEC)
    result = run(script, "--case", "two")
    assert (result.exit_code, result.stderr) == (2, "tilesmith: --case: op has no case 'two'; it has one, odd\n")
    result = run(good, "--case", "two")
    assert (result.exit_code, result.stderr) == (2, f"tilesmith: --case 'two': {good} has no SPEC\n")
