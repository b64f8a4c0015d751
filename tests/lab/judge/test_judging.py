"""A verdict through the judge's public face: reasons, stages, reward, protections, gradients, splitting, bridges."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tilesmith.lab.judge import (
    Candidate,
    CandidateError,
    Judge,
    Options,
    Rules,
    Task,
    TaskError,
    judge,
    schema,
    task_at,
)
from tilesmith.lab.judge.bridges.opening import both_of
from tilesmith.lab.judge.bridges.splitting import split
from tilesmith.lab.judge.isolation import sandbox
from tilesmith.lab.judge.output.explanations import EXPLANATIONS, explained
from tilesmith.lab.judge.verdict import Verdict, reward
from tilesmith.spec import Case, Spec

ZOO = Path(__file__).parents[2] / "judge" / "zoo"
BRIDGES = Path(__file__).parents[2] / "judge" / "bridges"
PLAIN = ZOO / "honest" / "softmax" / "plain.py"
QUICK = Options(seed=5, facts=False)


@pytest.fixture(scope="module")
def verdict_of_plain(warm_judge: Judge, softmax: Task) -> Verdict:
    return warm_judge.judge(softmax, Candidate.of(PLAIN), Options(seed=5))


@pytest.fixture(scope="module")
def verdict_of_no_maximum(warm_judge: Judge, softmax: Task) -> Verdict:
    return warm_judge.judge(softmax, Candidate.of(ZOO / "cheats" / "softmax" / "no_maximum.py"), QUICK)


def test_plain_softmax_passes_with_facts_of_the_compiler(verdict_of_plain: Verdict) -> None:
    verdict = verdict_of_plain
    assert verdict.passed
    assert verdict.stages["compiles"] == "passed"
    assert verdict.bytes == verdict.floor_bytes
    (kernel,) = verdict.kernels
    assert kernel["name"] == "softmax_kernel"
    assert kernel["targets"]["cuda:90"]["registers"] > 0
    assert kernel["targets"]["cuda:90"]["spill_bytes"] == 0
    assert kernel["sectors"] >= kernel["ideal_sectors"] > 0
    assert verdict.reward.value == pytest.approx(sum(verdict.reward.parts.values()))
    assert verdict.reward.value == pytest.approx(1.0)


def test_verdict_follows_the_published_schema(
    warm_judge: Judge, softmax: Task, verdict_of_plain: Verdict, verdict_of_no_maximum: Verdict
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    printing = Candidate.of(ZOO / "cheats" / "softmax" / "prints_verdict.py")
    for verdict in (verdict_of_plain, verdict_of_no_maximum, warm_judge.judge(softmax, printing, Options(seed=5))):
        jsonschema.validate(json.loads(json.dumps(verdict.as_json(), allow_nan=False)), schema())


def test_sizes_that_are_no_numbers_are_kept(warm_judge: Judge, softmax: Task) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    lengths: list[Any] = [(1, 2), (4,)]
    cases = [Case("two", rows=3, cols=9, lengths=lengths[0]), Case("one", rows=4, cols=8, lengths=lengths[1])]
    task = replace(softmax, spec=replace(softmax.spec, cases=cases))
    wrong = Candidate.of(ZOO / "cheats" / "softmax" / "half_precision.py")
    found = warm_judge.judge(task, wrong, QUICK).as_json()
    assert {tuple(one["sizes"]["lengths"]) for one in found["reasons"]} <= {(1, 2), (4,)}
    jsonschema.validate(json.loads(json.dumps(found, allow_nan=False)), schema())


def test_wrong_element_names_program_line_and_expected_value(warm_judge: Judge, softmax: Task) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of(ZOO / "cheats" / "softmax" / "half_precision.py"), QUICK)
    reason = verdict.reason
    assert reason is not None
    assert reason.kind == "wrong-value"
    assert reason.stage == verdict.stage == "right"
    assert reason.element is not None
    assert reason.expected != reason.found
    assert reason.kernel == "kernel"
    assert reason.program == (reason.element[0], 0, 0)
    assert reason.file == "half_precision.py"
    assert reason.line
    text = (ZOO / "cheats" / "softmax" / "half_precision.py").read_text().splitlines()
    assert "tl.store" in text[reason.line - 1]


def test_small_error_shows_in_the_digits_of_the_message(warm_judge: Judge, softmax: Task) -> None:
    text = PLAIN.read_text().replace("e / tl.sum(e, axis=0)", "e / tl.sum(e, axis=0) * 1.0000006")
    reason = warm_judge.judge(softmax, Candidate.of_text(text), QUICK).reason
    assert reason is not None
    found = re.search(r"is (\S+), but must be (\S+) ", reason.message)
    assert found is not None
    assert found[1] != found[2]


def test_same_seed_gives_the_same_verdict(warm_judge: Judge, softmax: Task, verdict_of_no_maximum: Verdict) -> None:
    candidate = Candidate.of(ZOO / "cheats" / "softmax" / "no_maximum.py")
    first, second = verdict_of_no_maximum, warm_judge.judge(softmax, candidate, QUICK)
    assert replace(first, seconds=0.0).as_json() == replace(second, seconds=0.0).as_json()


def test_seed_is_drawn_and_named_where_none_is_given(warm_judge: Judge, softmax: Task) -> None:
    seeds = {warm_judge.judge(softmax, Candidate.of_text("x = 1"), Options(facts=False)).seed for _ in range(2)}
    assert len(seeds) == 2


def test_protections_of_this_machine_are_listed(warm_judge: Judge, softmax: Task) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of(PLAIN), QUICK)
    assert set(verdict.protections) | set(verdict.missing_protections) == set(sandbox.ALL)
    assert not set(verdict.protections) & set(verdict.missing_protections)


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        ("def softmax(x:", "syntax-error", "loads"),
        ("raise ValueError('no')", "import-error", "loads"),
        ("answer = 42", "no-function", "loads"),
        ("def softmax(x):\n    return 1 / 0", "exception", "runs"),
        ("def softmax(x):\n    return 'text'", "bad-output", "runs"),
    ],
)
def test_broken_candidate_has_a_reason(text: str, kind: str, stage: str, warm_judge: Judge, softmax: Task) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of_text(text), QUICK)
    assert verdict.outcome == "fail"
    assert verdict.reason is not None
    assert (verdict.reason.kind, verdict.stage) == (kind, stage)
    assert verdict.reward.value <= 0.05


LOOKUP = """
import torch, triton, triton.language as tl

@triton.jit
def lookup_kernel(table_ptr, index_ptr, y_ptr, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    index = tl.load(index_ptr + row)
    columns = tl.arange(0, COLUMNS)
    values = tl.load(table_ptr + index * COLUMNS + columns)
    tl.store(y_ptr + row * COLUMNS + columns, tl.where(index & 15 > 14, 0.0, values))

def lookup(table, index):
    y = table.new_empty(len(index), 8)
    lookup_kernel[(len(index),)](table, index, y, COLUMNS=8)
    return y
"""


@pytest.mark.parametrize("seed", range(4))
def test_kernel_wrong_for_some_integers_is_blamed_for_these(seed: int, warm_judge: Judge) -> None:
    def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
        table, index = torch.randn(200, 8, dtype=dtype), torch.randint(0, 200, (case.rows,))
        return {"table": table.to(device), "index": index.to(device)}

    spec = Spec(
        name="lookup", op=(define := lambda table, index: table[index]), reference=define,
        cases=[Case("few", rows=9), Case("many", rows=77)], make_inputs=make_inputs, differentiable=False,
    )  # fmt: skip
    verdict = warm_judge.judge(Task.of(spec), Candidate.of_text(LOOKUP), replace(QUICK, seed=seed))
    assert verdict.stages["honest"] == "passed"
    assert {one.kind for one in verdict.reasons} == {"wrong-value"}
    named = [one.message.partition("only where index is ")[2].partition(" (")[0] for one in verdict.reasons]
    assert all(named)
    assert {int(one) & 15 for one in re.findall(r"\d+", " ".join(named))} == {15}


def test_definition_that_draws_random_numbers_is_refused(warm_judge: Judge, softmax: Task) -> None:
    spec = replace(softmax.spec, reference=lambda x: torch.dropout(torch.softmax(x, -1), 0.5, train=True))
    with pytest.raises(TaskError, match="another call with the same inputs gives other results"):
        warm_judge.judge(replace(softmax, spec=spec), Candidate.of(PLAIN), QUICK)


@pytest.mark.usefixtures("forked")
def test_operator_without_a_kernel_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no_kernel.py"
    file.write_text(
        (ZOO / "tasks" / "softmax.py").read_text().replace("op=reference", "op=fast")
        + "\n\n# the operator launches nothing\n"
    )
    text = file.read_text().replace("SPEC = ", "def fast(x):\n    return torch.softmax(x, -1)\n\n\nSPEC = ")
    file.write_text(text)
    verdict = judge(file, options=QUICK)
    assert verdict.reason is not None
    assert verdict.reason.kind == "torch-computes"


@pytest.mark.usefixtures("forked")
def test_empty_input_needs_no_launch(tmp_path: Path) -> None:
    file = tmp_path / "count.py"
    file.write_text(
        "import torch, triton, triton.language as tl\nfrom tilesmith import Case, Spec\n\n"
        "@triton.jit\ndef kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n"
        "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)\n"
        "    tl.atomic_add(y_ptr + x, 1, mask=offsets < n)\n\n"
        "def count(x):\n    y = torch.zeros(8, dtype=torch.int32)\n    if x.numel():\n"
        "        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)\n    return y\n\n"
        "def reference(x):\n    return torch.bincount(x, minlength=8).int()\n\n"
        "SPEC = Spec(name='count', op=count, reference=reference, cases=[Case('none', n=0), Case('some', n=90)],\n"
        "            make_inputs=lambda case, dtype, device: {'x': torch.randint(0, 8, (case.n,))},\n"
        "            dtypes=[torch.float32], differentiable=False)\n"
    )
    assert judge(file, options=QUICK).outcome == "pass"


def test_spec_file_is_split_into_task_and_candidate() -> None:
    text = (
        "import torch\nfrom tilesmith import Case, Spec\nSIZE = 3\n\ndef helper(x):\n    return x * 2\n\n"
        "def reference(x):\n    return helper(x)\n\ndef op(x):\n    return x + x\n\n"
        "def make_inputs(case, dtype, device):\n    return {'x': torch.ones(SIZE)}\n\n"
        "SPEC = Spec(name='double', op=op, reference=reference, cases=[Case('a', n=1)], make_inputs=make_inputs)\n"
    )
    parts = split(text, "double.py")
    assert parts.function == "op"
    assert "def op" in parts.candidate
    assert "reference" not in parts.candidate
    assert "helper" not in parts.candidate
    assert "def op" not in parts.task
    assert "op=reference" in parts.task
    assert "SIZE = 3" in parts.task


def test_split_keeps_what_registers_an_operator_and_leaves_the_main_block_out() -> None:
    text = (
        "import torch, library\nfrom tilesmith import Case, Spec\n\n"
        "@library.custom_op('mine::double')\ndef double(x):\n    return x + x\n\n"
        "@double.register_fake\ndef _(x):\n    return shaped(x)\n\ndef shaped(x):\n    return x\n\n"
        "@double.register_kernel\ndef _(x):\n    return helper(x)\n\ndef helper(x):\n    return x\n\n"
        "def backward(context, dy):\n    return 2 * dy\n\ndouble.register_autograd(backward)\n\n"
        "def op(x):\n    return torch.ops.mine.double(x)\n\ndef reference(x):\n    return 2 * x\n\n"
        "SPEC = Spec(name='op', op=op, reference=reference, cases=[Case('a', n=1)], make_inputs=reference)\n"
        "if __name__ == '__main__':\n    reference(1)\n"
    )
    parts = split(text, "double.py")
    for needed in ("def double", "def shaped", "def helper", "def backward", "double.register_autograd(backward)"):
        assert needed in parts.candidate
    assert "def reference" not in parts.candidate
    assert "library.custom_op" not in parts.task


def test_split_keeps_the_lines_of_the_file() -> None:
    text = (
        "# A comment.\nimport torch; import triton\nfrom tilesmith import Case, Spec\nSIZE = 3; WIDTH = 4\n\n\n"
        "def reference(x):\n    # Twice.\n    return 2 * x * WIDTH\n\n\n"
        "@triton.jit\ndef kernel(x):\n    # Ä comment.\n    raise ValueError('kernel')\n\n\n"
        "def op(x):\n    return kernel(x) * WIDTH\n\n\n"
        "SPEC = Spec(\n    name='op', op=op, reference=reference,\n    cases=[Case('a', n=SIZE)],\n"
        "    make_inputs=inputs)\n"
        "def inputs(case, dtype, device):\n    return {}\n"
    )
    parts = split(text, "double.py")
    lines, candidate, task = text.splitlines(), parts.candidate.splitlines(), parts.task.splitlines()
    assert candidate == ["", *lines[1:3], "WIDTH = 4", "", "", *[""] * 5, *lines[11:19]]
    assert task[:9] == ["", *lines[1:9]]
    assert task[21].startswith("SPEC = Spec(name='op', op=reference")
    assert task[25:] == lines[25:]


def test_file_without_plain_spec_cannot_be_split(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("SPEC = make()\nSPEC.op = 1\n")
    with pytest.raises(TaskError, match="op of SPEC is not the name of a function"):
        both_of(file)
    with pytest.raises(TaskError, match="no such file"):
        both_of(tmp_path / "missing.py")
    file.write_bytes(b"# \xe9\n")  # latin-1, not declared
    with pytest.raises(TaskError, match="neither UTF-8 nor"):
        both_of(file)


@pytest.mark.parametrize(
    ("task", "candidate", "kind"),
    [
        ("kernelbench/gelu.py", "kernelbench/gelu_honest.py", None),
        ("kernelbench/linear_relu.py", "kernelbench/linear_relu_honest.py", None),
        ("kernelbench/linear_relu.py", "kernelbench/linear_relu_decoy.py", "decoy-kernel"),
        ("kernelbench/linear_relu.py", "kernelbench/linear_relu_constructor.py", "wrong-value"),
        ("kernelbench/two_linears.py", "kernelbench/two_linears_renamed.py", None),
        ("kernelbench/two_linears.py", "kernelbench/two_linears_folded.py", "constructor"),
        ("kernelbench/leaky.py", "kernelbench/leaky_positive_only.py", "wrong-value"),
        ("scale_rows", "scale_rows/submission.py", None),
        ("scale_rows", "scale_rows_by_torch.py", "no-launch"),
        ("scale_rows", "scale_rows_filled.py", "decoy-kernel"),
    ],
)
def test_problems_of_others_are_judged_as_they_are(task: str, candidate: str, kind: str | None) -> None:
    verdict = judge(BRIDGES / task, BRIDGES / candidate, options=QUICK)
    assert (verdict.reason.kind if verdict.reason else None) == kind, str(verdict)
    assert verdict.passed == (kind is None)


def test_kernelbench_problem_is_made_small() -> None:
    task = task_at(BRIDGES / "kernelbench" / "linear_relu.py")
    (case,) = task.given
    assert case.sizes["in_features"] < 1024
    assert task.init == [case.sizes["in_features"], case.sizes["out_features"]]


def test_kernelbench_shapes_that_follow_from_sizes_are_made_small_too() -> None:
    task = task_at(BRIDGES / "kernelbench" / "shifted_rows.py")
    (case,) = task.given
    assert case.sizes["input_shape_0"] < 16384
    inputs: Any = task.spec.make_inputs(case, torch.float32, "cpu", task.layouts[0])
    (x,) = inputs.values()
    assert list(x.shape) == [case.sizes["batch_size"], case.sizes["planes"], case.sizes["input_shape_0"]]
    assert x.nbytes <= 1 << 20


def test_gpu_mode_tests_are_the_given_sizes() -> None:
    task = task_at(BRIDGES / "scale_rows")
    assert [dict(case.sizes) for case in task.spec.cases] == [{"rows": 7, "cols": 33}, {"rows": 16, "cols": 128}]


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_wrong_task_path_is_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        task_at(tmp_path / name)


def test_candidate_path_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match="no such file or folder"):
        Candidate.of(tmp_path / "missing.py")
    with pytest.raises(CandidateError, match="has none of"):
        Candidate.of(tmp_path)


def test_required_gradient_is_missed(warm_judge: Judge) -> None:
    task = task_at(ZOO / "tasks" / "rms_norm.py", Rules(gradients="required"))
    verdict = warm_judge.judge(task, Candidate.of(ZOO / "honest" / "rms_norm" / "forward_only.py"), QUICK)
    assert verdict.reason is not None
    assert verdict.reason.kind == "no-gradient"


def test_tf32_is_right_where_the_rules_allow_it(warm_judge: Judge) -> None:
    candidate = Candidate.of(ZOO / "cheats" / "matmul" / "tf32.py")
    task = task_at(ZOO / "tasks" / "matmul.py", Rules(tf32=True))
    assert warm_judge.judge(task, candidate, QUICK).passed


def test_hidden_sizes_differ_between_seeds(softmax: Task) -> None:
    drawn = [{str(trial.case.sizes) for trial in softmax.trials(seed) if trial.hidden} for seed in (1, 2)]
    assert drawn[0]
    assert drawn[0] != drawn[1]
    assert drawn[0] == {str(trial.case.sizes) for trial in softmax.trials(1) if trial.hidden}


def test_reward_is_nothing_for_a_cheat_and_lies_in_the_unit_interval() -> None:
    all_passed = dict.fromkeys(("loads", "runs", "honest", "right", "safe", "compiles"), "passed")
    assert reward(all_passed, 1.0, 5.0).value == pytest.approx(1.0)
    assert reward({**all_passed, "honest": "failed"}, 1.0, 1.0).value == 0.0
    half = reward({**all_passed, "right": "failed"}, 0.5, 1.0)
    assert 0 < half.value < 0.6
    assert half.parts["speed"] == 0.0


def test_every_reason_of_the_zoo_is_explained() -> None:
    for path in (ZOO / "cheats").glob("*/*.py"):
        for kind in path.read_text().splitlines()[1].removeprefix("# judge: ").split("|"):
            assert explained(kind) == EXPLANATIONS[kind]
    with pytest.raises(KeyError, match="is not one of"):
        explained("unheard-of")


@pytest.mark.parametrize("built", ["module = {build}\ndef softmax(x):\n    return module.softmax(x)\n",
                                   "def softmax(x):\n    return {build}.softmax(x)\n"])  # fmt: skip
def test_cuda_sources_leave_the_verdict_open_with_a_sentence(built: str, warm_judge: Judge, softmax: Task) -> None:
    build = "load_inline('fast', '', cuda_sources='__global__ void f() {}', functions=[])"
    text = "from torch.utils.cpp_extension import load_inline\n" + built.replace("{build}", build)
    verdict = warm_judge.judge(softmax, Candidate.of_text(text), QUICK)
    assert verdict.outcome == "unproven"
    assert "builds CUDA sources" in str(verdict)
    assert verdict.reason is not None
    assert verdict.reason.advice
    assert "\n" not in verdict.reason.message
    commented = Candidate.of_text(f"# not with cpp_extension\n{PLAIN.read_text()}", "softmax")
    assert not commented.uses_cuda_sources


def test_sources_for_nvrtc_leave_the_verdict_open(warm_judge: Judge, softmax: Task) -> None:
    build = "torch.cuda._compile_kernel('__global__ void f() {}', 'f')"
    text = f"import torch\nkernel = {build}\ndef softmax(x):\n    return x\n"
    verdict = warm_judge.judge(softmax, Candidate.of_text(text), QUICK)
    assert verdict.outcome == "unproven"
    assert verdict.reason is not None
    assert verdict.reason.kind == "cuda-sources"


@pytest.mark.usefixtures("forked")
def test_guide_feeds_the_reason_back_until_a_candidate_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop of docs/judge.md, as a reader would paste it."""
    page = (Path(__file__).parents[3] / "docs" / "judge.md").read_text()
    loop = page.partition("## A loop that feeds reasons back")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "softmax_task.py").write_text((ZOO / "tasks" / "softmax.py").read_text())
    (tmp_path / "softmax_kernel.py").write_text(PLAIN.read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(loop, "judge.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("0 fail 0.0")
    assert second.startswith("1 pass ")
    assert "PyTorch computes" in str(names["feedback"])


@pytest.mark.parametrize("text", ["x = " + "-" * 200_000 + "1\n", "x = " + "(" * 5_000 + ")" * 5_000, "\0"])
def test_source_too_deep_for_the_parser_is_a_syntax_error(text: str, warm_judge: Judge, softmax: Task) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of_text(text), QUICK)
    assert verdict.reason is not None
    assert verdict.reason.kind == "syntax-error"
