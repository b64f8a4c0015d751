"""`ts.lab.check`, `inspect`, `bench` and `profile`: what they return, print, render and serialise."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilesmith as ts
from tilesmith.lab.check import Result
from tilesmith.lab.check.check_call import Checked, faults_in
from tilesmith.lab.profile.summary import ProfileError
from tilesmith.spec import CONTIGUOUS, Case, Spec, SpecError, load_file

jsonschema: Any = pytest.importorskip("jsonschema")  # a machine with a GPU may not have it

KERNELS = Path(__file__).parents[1] / "kernels"
MULTIPLY = KERNELS / "multiply.py"


def valid(command: str, made: Any) -> None:
    """Assert that an output follows its schema, also after a round trip through strict JSON."""
    text = json.dumps(made, allow_nan=False)
    jsonschema.Draft202012Validator(ts.lab.schema(command)).validate(json.loads(text))


@pytest.fixture(scope="module")
def silu() -> ts.lab.Checked:
    return ts.lab.check("silu", cases=["odd"], dtypes=["float32"], layouts=["contiguous"], device="cpu")


def test_check_takes_a_name_an_operator_a_spec_and_a_file() -> None:
    chosen: dict[str, Any] = {"dtypes": [torch.float32], "layouts": [CONTIGUOUS], "device": "cpu"}
    by_name = ts.lab.check("silu", cases=["odd"], **chosen)
    assert by_name.passed
    assert list(by_name) == list(ts.lab.check(ts.ops.silu, cases=["odd"], **chosen))
    spec = load_file(MULTIPLY)
    assert [one.what for one in ts.lab.check(spec, cases=[spec.case("odd")], **chosen)] == [
        one.what for one in ts.lab.check(str(MULTIPLY), cases=["odd"], **chosen)
    ]


def test_check_prints_a_summary_and_renders_a_page(silu: ts.lab.Checked) -> None:
    assert str(silu).startswith("silu: right, 2 comparisons; largest error ")
    assert repr(silu) == str(silu)
    assert "silu" in silu._repr_html_()
    assert silu._repr_html_().startswith("<iframe")


def test_check_prints_each_failure() -> None:
    wrong = Spec(
        name="doubled", op=lambda x: x * 3, reference=lambda x: x * 2, cases=[Case("five", elements=5)],
        make_inputs=lambda case, dtype, device: {"x": torch.ones(case.elements, dtype=dtype, device=device)},
        dtypes=[torch.float32], layouts=[CONTIGUOUS],
    )  # fmt: skip
    found = ts.lab.check(wrong, device="cpu")
    assert not found.passed
    assert [one.what for one in found.failures] == ["forward", "gradient x"]
    assert "wrong doubled five float32 contiguous, forward" in str(found)
    assert str(found).endswith("doubled: 2 wrong, 2 comparisons")
    assert "2 wrong" in found._repr_html_()
    valid("check", found.to_json())


def test_failures_of_one_mistake_are_one_fault() -> None:
    def failure(case: str, message: str, what: str = "forward") -> Result:
        return Result("op", case, "float32", "contiguous", what, float("inf"), 0.0, False, message)

    here = f"{os.getcwd()}{os.sep}"
    results = [
        failure("one", f"kernel ({here}k.py:9), program (0, 0, 0): load from x_ptr[1], which has 1 element"),
        failure("odd", f"kernel ({here}k.py:9), program (2, 0, 0): load from x_ptr[77], which has 77 elements"),
        failure("odd", f"kernel ({here}k.py:14), program (2, 0, 0): store to o_ptr[77], which has 77 elements"),
        failure("odd", "element [0, 3] is nan, but must be -1.5", "gradient x"),
        failure("even", "element [1, 3] is 2.5e-07, but must be 4 (off by 4, allowed 0.1)", "gradient x"),
        failure("even", "element [1, 3] is 2.5e-07, but must be 4 (off by 4, allowed 0.1)", "gradient y"),
        failure("even", "no gradient reaches x", "gradient x"),
    ]
    faults = faults_in(results)
    assert [len(fault.failures) for fault in faults] == [2, 1, 2, 1, 1]
    assert str(faults[0]) == (
        "wrong op one float32 contiguous, forward: "
        "kernel (k.py:9), program (0, 0, 0): load from x_ptr[1], which has 1 element\n"
        "    and 1 comparison more: odd; float32; contiguous"
    )
    assert str(Checked("op", tuple(results))).count("wrong op") == 5


@pytest.mark.parametrize(
    "message",
    ["has dtype torch.float64, but must have torch.{}", "k does not compile (k.py:8): acc has type <['64'], {}>"],
)
@pytest.mark.parametrize("dtypes", [("float16", "bfloat16", "float32"), ("fp16", "bf16", "fp8e4nv"), ("int8", "uint8")])
def test_failures_that_differ_in_the_dtype_are_one_fault(message: str, dtypes: tuple[str, ...]) -> None:
    results = [
        Result("op", "odd", dtype, "contiguous", "forward", float("inf"), 0.0, False, message.format(dtype))
        for dtype in dtypes
    ]
    assert [len(fault.failures) for fault in faults_in(results)] == [len(dtypes)]


def test_check_writes_the_json_of_the_command(silu: ts.lab.Checked) -> None:
    made = silu.to_json()
    valid("check", made)
    assert made["schema"] == 1
    assert [one["what"] for one in made["results"]] == ["forward", "gradient x"]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ts.lab.check("sillu"), SpecError, "'sillu' is neither an operator"),
        (lambda: ts.lab.check(torch.relu), SpecError, "relu has no SPEC beside it"),
        (lambda: ts.lab.check(3), TypeError, "expected an operator, its name, a Spec or a file, not int"),  # type: ignore[arg-type]
        (lambda: ts.lab.check("silu", dtypes=["int8"]), SpecError, "dtype 'int8' is not one of"),
        (lambda: ts.lab.check("silu", cases=["huge"]), SpecError, "huge"),
        (lambda: ts.lab.bench("silu", device="abacus"), ValueError, "abacus"),
        (lambda: ts.lab.inspect("no_such_script.py"), FileNotFoundError, "no_such_script.py is not a file"),
        (lambda: ts.lab.profile(""), ProfileError, "the command is empty"),
        (lambda: ts.lab.profile("python x.py", tool="stopwatch"), ProfileError, "stopwatch"),
        (lambda: ts.lab.schema("sing"), ValueError, "'sing' is not one of check"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_bench_predicts_for_a_named_device() -> None:
    found = ts.lab.bench(ts.ops.rms_norm, cases=["large"], device="h100")
    valid("bench", found.to_json())
    assert {row["kind"] for row in found} == {"predicted"}
    assert found.passed
    assert [contest.mode for contest in found.contests] == ["fwd", "bwd"]
    assert "predicted" in str(found)
    assert found._repr_html_().startswith("<iframe")


def test_bench_takes_a_spec_of_this_process() -> None:
    spec = load_file(MULTIPLY)
    found = ts.lab.bench(spec, device="h200")
    assert {row["op"] for row in found.rows} == {spec.name}


def test_inspect_prints_findings_and_writes_the_json_of_the_command() -> None:
    spec = load_file(MULTIPLY)
    inputs = spec.inputs(spec.case("odd"), torch.float32, "cpu")
    found = ts.lab.inspect(lambda: spec.op(**inputs), targets=["cuda:90"])
    valid("inspect", found.to_json())
    kernel = found.kernels[0]
    assert str(found).startswith(f"{kernel.name}  multiply.py:{kernel.line}\n")
    assert "of the moved bytes are used" in str(found)
    assert "Memory accesses of all programs" in found.report()
    assert kernel.name in found.html()
    assert "<iframe" in found._repr_html_()


@pytest.mark.usefixtures("forked")
def test_inspect_runs_a_script(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("import sys; print(sys.argv[1])")
    found = ts.lab.inspect(script, arguments=["hello"])
    assert found.ending.kind == "finished"
    assert str(found) == f"{script} launched no Triton kernel"
    valid("inspect", found.to_json())


@pytest.mark.usefixtures("forked")
def test_profile_returns_where_the_time_goes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.ones(64, 64) @ torch.ones(64, 64)\n")
    found = ts.lab.profile([sys.executable, str(program)], out=tmp_path / "out", tool="torch")
    valid("profile", found.to_json())
    assert found.status == 0
    assert any("mm" in entry.name for entry in found.summary.entries)
    assert "name" in str(found)
    assert found._repr_html_().startswith("<iframe")
