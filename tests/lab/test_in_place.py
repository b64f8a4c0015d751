"""In-place operators: what they leave in their inputs is compared, on tensors that can be written to."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tilesmith.lab import Result, check
from tilesmith.lab.judge import Options, judge
from tilesmith.lab.judge.bridges.opening import both_of
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Layout, load_file

DOUBLE = """
    import torch, triton, triton.language as tl
    from tilesmith import Case, Spec

    @triton.jit
    def double_kernel(x_ptr, row_stride, column_stride, columns, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        x_ptr += tl.program_id(0) * row_stride + offsets * column_stride
        tl.store(x_ptr, 2 * tl.load(x_ptr, mask=offsets < columns), mask=offsets < columns)

    def double_(x):
        {before}
        double_kernel[(x.shape[0],)](x, *x.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        {result}

    def reference(x):
        x.mul_(2)
        {result}

    SPEC = Spec(name="double_", op=double_, reference=reference, cases=[Case("odd", rows=3, columns=17)],
                make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, case.columns, dtype=dtype)},
                dtypes=[torch.float32], differentiable=False)
"""
QUICK = Options(seed=5, facts=False)
RETURNS_X = "return x"
RETURNS_NOTHING = "return None"
ALL_BUT_EXPANDED = [layout.name for layout in LAYOUTS if layout.name != "expanded"]


def results_of(
    folder: Path, result: str, before: str = "pass", layouts: Sequence[Layout] | None = None
) -> list[Result]:
    file = folder / "mine.py"
    file.write_text(textwrap.dedent(DOUBLE).replace("{before}", before).replace("{result}", result))
    return list(check(load_file(file), layouts=layouts, device="cpu"))


def test_right_operator_passes_in_each_layout_without_overlap(tmp_path: Path) -> None:
    results = results_of(tmp_path, RETURNS_X)
    assert [result for result in results if not result.passed] == []
    assert [result.layout for result in results] == ALL_BUT_EXPANDED


def test_operator_that_returns_nothing_is_compared_by_its_inputs(tmp_path: Path) -> None:
    results = results_of(tmp_path, RETURNS_NOTHING, layouts=[CONTIGUOUS])
    assert [(result.what, result.passed) for result in results] == [("input x", True)]


def test_operator_that_changes_a_copy_of_its_input_fails(tmp_path: Path) -> None:
    results = results_of(tmp_path, RETURNS_X, "x = x.clone()", [CONTIGUOUS])
    assert [(result.what, result.passed) for result in results] == [("forward", True), ("input x", False)]


def test_returned_input_is_compared_once(tmp_path: Path) -> None:
    assert [result.what for result in results_of(tmp_path, RETURNS_X, layouts=[CONTIGUOUS])] == ["forward"]


def test_result_without_name_of_an_in_place_operator_says_how_to_name_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = textwrap.dedent(DOUBLE).replace("{before}", "pass").replace("x.mul_(2)\n    {result}", "return 2 * x")
    file.write_text(text.replace("{result}", RETURNS_NOTHING).replace('"double_"', '"double"'))
    (failure,) = [result for result in check(load_file(file), layouts=[CONTIGUOUS], device="cpu") if not result.passed]
    assert "returns a NoneType" in failure.message
    assert "the name of an operator that changes its inputs ends in _" in failure.message


def test_task_of_an_in_place_operator_leaves_out_the_expanded_layout(tmp_path: Path) -> None:
    results_of(tmp_path, RETURNS_X, layouts=[CONTIGUOUS])
    task, _ = both_of(tmp_path / "mine.py")
    assert [layout.name for layout in task.layouts] == ALL_BUT_EXPANDED


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("result", [RETURNS_X, RETURNS_NOTHING])
def test_right_operator_passes_the_judge(tmp_path: Path, result: str) -> None:
    results_of(tmp_path, result, layouts=[CONTIGUOUS])
    assert judge(tmp_path / "mine.py", options=QUICK).outcome == "pass"


@pytest.mark.usefixtures("forked")
def test_operator_that_changes_a_copy_of_its_input_fails_the_judge(tmp_path: Path) -> None:
    results_of(tmp_path, RETURNS_X, "x = x.clone()", [CONTIGUOUS])
    reason = judge(tmp_path / "mine.py", options=QUICK).reason
    assert reason is not None
    assert "of the input x is" in reason.message
