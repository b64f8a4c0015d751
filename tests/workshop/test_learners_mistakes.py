"""Messages for mistakes that learners made in their own attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checked import SOLUTION, changed, verdict_on

from tilesmith.lab.errors import first_missing_brackets
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.unfinished_code import first_problem
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.isolation.worker import Worker

WAITS = """import torch
import triton
import triton.language as tl

BLOCK_SIZE = 128


@triton.jit
def scan_kernel(x_ptr, out_ptr, totals_ptr, done_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    program = tl.program_id(0)
    offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets, mask=offsets < n_elements, other=0.0)
    before = 0.0
    if program > 0:
        while tl.atomic_add(done_ptr + program - 1, 0) == 0:
            pass
        before = tl.load(totals_ptr + program - 1)
    tl.store(totals_ptr + program, before + tl.sum(x, axis=0))
    tl.atomic_xchg(done_ptr + program, 1)
    tl.store(out_ptr + offsets, before + tl.cumsum(x, axis=0), mask=offsets < n_elements)


def prefix_sum(x):
    programs = triton.cdiv(x.numel(), BLOCK_SIZE)
    out, totals = torch.empty_like(x), torch.empty(programs, device=x.device)
    done = torch.zeros(programs, dtype=torch.int32, device=x.device)
    scan_kernel[(programs,)](x, out, totals, done, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
    return out
"""


def solution(exercise: str) -> str:
    return (BUILT_IN / exercise / "solution.py").read_text()


def test_kernel_that_waits_for_an_earlier_program_depends_on_the_order(tmp_path: Path) -> None:
    verdict = verdict_on(WAITS, tmp_path, "prefix-scan", hidden=())
    assert verdict.stage == "right"
    assert "when the last program runs first" in verdict.message


@pytest.mark.parametrize("calls", range(2, 6))
def test_function_that_fails_in_a_later_call_fails_at_right(calls: int, tmp_path: Path) -> None:
    limit = f"    if CALLS.append(0) or len(CALLS) > {calls}:\n        raise ValueError('used up')\n"
    verdict = verdict_on(f"CALLS = []\n{changed('    programs =', f'{limit}    programs =')}", tmp_path, hidden=())
    assert verdict.stage == "right"
    assert "ValueError: used up" in verdict.message
    assert "vector_add.py:21" in verdict.message


def test_forbidden_function_is_not_called_arithmetic(tmp_path: Path) -> None:
    copied = changed(
        "    out = ", "    k = k[:, :, None].expand(-1, -1, 1, -1)[:, :, 0]\n    out = ", solution("grouped-heads")
    )
    message = verdict_on(copied, tmp_path, "grouped-heads", hidden=()).message
    assert "This exercise forbids `expand`" in message
    assert "PyTorch does this part" not in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return values, indices", "return indices, values", "Result 1 has dtype torch.int32, but must have"),
        ("return values, indices", "return values", "Returns 1 tensor, but must return 2"),
        ("rank, index)", "rank, index + 1)", "Element [0, 0] of result 2 is"),
    ],
)
def test_wrong_result_of_several_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    verdict = verdict_on(changed(old, new, solution("top-k")), tmp_path, "top-k", hidden=())
    assert verdict.stage == "right"
    assert words in verdict.message


def test_wrong_dtype_of_the_only_result_is_told_of_the_result(tmp_path: Path) -> None:
    wide = changed("torch.empty_like(x)", "torch.empty_like(x, dtype=torch.float64)", SOLUTION)
    assert "The result has dtype torch.float64, but must have" in verdict_on(wide, tmp_path, hidden=()).message


def test_input_used_as_output_is_judged(tmp_path: Path) -> None:
    source = solution("online-softmax")
    in_place = changed("torch.empty(x.shape, dtype=x.dtype, device=x.device)", "x", source)
    verdict = verdict_on(in_place, tmp_path, "online-softmax", hidden=())
    assert verdict.stage == "right"
    assert "input" in verdict.message


def test_two_rows_per_program_pass_where_a_row_is_long(tmp_path: Path) -> None:
    source = solution("online-softmax")
    for old, new in (
        ("tl.program_id(0) * x_row_stride", "row * x_row_stride"),
        ("tl.program_id(0) * out_row_stride", "row * out_row_stride"),
        ("    x_row_ptr =", "    row = (tl.program_id(0) * 2 + tl.arange(0, 2))[:, None]\n    x_row_ptr ="),
        ("tl.arange(0, BLOCK_SIZE)", "tl.arange(0, BLOCK_SIZE)[None, :]"),
        ("mask=column < columns", "mask=(row < rows) & (column < columns)"),
        ("x_ptr, out_ptr, columns,", "x_ptr, out_ptr, rows, columns,"),
        ("(x, out, columns,", "(x, out, rows, columns,"),
        ("[(rows,)]", "[(triton.cdiv(rows, 2),)]"),
        ('largest = -float("inf")', 'largest = tl.full((2, 1), -float("inf"), dtype=tl.float32)'),
        ("total = 0.0", "total = tl.zeros((2, 1), dtype=tl.float32)"),
        ("axis=0)", "axis=1, keep_dims=True)"),
    ):
        source = changed(old, new, source)
    verdict = verdict_on(source, tmp_path, "online-softmax", hidden=["very-long"])
    assert verdict.passed, verdict.message


def test_compile_error_in_a_function_of_the_kernel_names_its_line(tmp_path: Path) -> None:
    source = changed(
        "tl.dot(out_gradient, tl.trans(v))", "tl.dot(out_gradient, v[:16])", solution("flash-attention-backward")
    )
    number = next(number for number, line in enumerate(source.splitlines(), 1) if "v[:16]" in line)
    verdict = verdict_on(source, tmp_path, "flash-attention-backward", hidden=())
    assert verdict.stage == "compiles"
    assert f"flash_attention_backward.py:{number}\n    weight_gradient = " in verdict.message


def imports_by_name(exercise: str, module: str, name: str) -> str:
    """Return the solution with `from module import name` in place of `module.name`."""
    source = changed(f"{module}.{name}", name, solution(exercise))
    return changed("import torch\n", f"import torch\nfrom {module} import {name}\n", source)


@pytest.mark.parametrize(
    ("exercise", "module", "name"),
    [
        ("perf-report", "triton.testing", "do_bench"),
        ("mend-llama", "time", "perf_counter"),
        ("mend-llama", "torch.cuda", "synchronize"),
    ],
)
def test_function_imported_by_its_name_is_that_of_the_check(
    exercise: str, module: str, name: str, tmp_path: Path
) -> None:
    chosen = load_exercise(BUILT_IN / exercise)
    file = tmp_path / chosen.file_name
    file.write_text(imports_by_name(exercise, module, name))
    with Worker() as worker:
        verdict = worker.check(chosen, file).verdict
    assert verdict.passed, verdict.message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("work, quantiles=[0.5, 0.2, 0.8]", "work", "Without quantiles, do_bench returns one time."),
        ("x_vals=[256, 512, 1024, 2048, 4096, 8192]", "x_vals=8192", "x_vals is 8192: a list of at least five widths"),
    ],
)
def test_mistake_in_a_benchmark_is_not_explained_by_blocks(old: str, new: str, words: str, tmp_path: Path) -> None:
    chosen = load_exercise(BUILT_IN / "perf-report")
    file = tmp_path / chosen.file_name
    file.write_text(changed(old, new, solution("perf-report")))
    message = ProgramCheck(chosen, file).verdict().message
    assert words in message
    assert "block" not in message.lower()


@pytest.mark.parametrize(
    ("exercise", "old", "new", "stage"),
    [
        ("three-dimensions", "(row < rows) & (column < columns)", "row < rows & column < columns", "runs"),
        ("flash-attention-causal", "& (key[None, :] <= query[:, None])", "& key[None, :] <= query[:, None]", "right"),
    ],
)
def test_mask_without_brackets_is_named(exercise: str, old: str, new: str, stage: str, tmp_path: Path) -> None:
    source = changed(old, new, solution(exercise))
    verdict = verdict_on(source, tmp_path, exercise, hidden=())
    number = next(number for number, line in enumerate(source.splitlines(), 1) if new in line)
    assert verdict.stage == stage
    assert f":{number}\n    " in verdict.message
    assert "Put brackets around each comparison" in verdict.message


@pytest.mark.parametrize(
    ("mask", "lacks"),
    [
        ("row < rows & column < columns", True),
        ("mask & row >= 0", True),
        ("select(a, b | c == 0)", True),
        ("(row < rows) & (column < columns)", False),
        ("(bits & 1) == 0", False),
        ("(row < rows) | (\n    bits & 4\n) > 0", True),
        ("(\n    (\n    bits & 4\n) > 0)", False),
    ],
)
def test_brackets_are_missing_where_a_combination_is_compared(mask: str, lacks: bool) -> None:
    assert (first_missing_brackets(f"ä = 0\nmask = {mask}\n") is not None) == lacks


def test_result_without_dimensions_is_a_wrong_shape_and_no_crash(tmp_path: Path) -> None:
    solution = (BUILT_IN / "reduction" / "solution.py").read_text()
    source = changed("torch.empty(1, ", "torch.empty((), ", solution)
    verdict = verdict_on(source, tmp_path, "reduction", hidden=[])
    assert verdict.stage == "right"
    assert "has shape (), but must have (1,)" in verdict.message


@pytest.mark.parametrize("content", [SOLUTION.encode("utf-16"), SOLUTION.encode("utf-16-le"), b"# gr\xf6\xdfe\n"])
def test_file_in_another_encoding_is_named_as_such(content: bytes, tmp_path: Path) -> None:
    exercise = load_exercise(BUILT_IN / "vector-add")
    file = tmp_path / exercise.file_name
    file.write_bytes(content)
    verdict = TritonCheck(exercise, file).verdict()
    assert verdict.stage == "parses"
    assert verdict.message.startswith("vector_add.py is not saved as UTF-8")


def test_declared_encoding_is_read(tmp_path: Path) -> None:
    exercise = replace(load_exercise(BUILT_IN / "vector-add"), hidden=())
    file = tmp_path / exercise.file_name
    file.write_bytes(("# coding: latin-1\n# größe\n" + SOLUTION).encode("latin-1"))
    assert TritonCheck(exercise, file).verdict().passed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# nothing yet\n", "has no code"),
        (SOLUTION.replace("def vector_add", "async def vector_add"), "it is an `async def`"),
        ("class Mine:\n    def vector_add(x, y):\n        return x\n", "On line 2 it stands inside a class"),
        (SOLUTION.replace("y: torch.Tensor)", "y: torch.Tensor, n)"), "with the arguments of the starter"),
        (SOLUTION.replace("(programs,)", "lambda meta: (x.numel() // meta['BLOCK'],)"), "kernel has none of this name"),
        (SOLUTION.replace("return out", "return vector_add(x, y)"), "A function calls itself without end"),
        ("import my_helpers\n" + SOLUTION, "runs a copy of this file alone"),
    ],
)
def test_message_names_the_mistake_outside_the_kernel(source: str, expected: str, tmp_path: Path) -> None:
    message = verdict_on(source, tmp_path, hidden=[]).message
    assert expected in message
    assert "launch passes fewer" not in message


def test_loop_that_cannot_end_is_found_before_it_runs(tmp_path: Path) -> None:
    solution = (BUILT_IN / "online-softmax" / "solution.py").read_text()
    source = solution.replace("    for start in range(0, columns, BLOCK_SIZE):", "    while start < columns:")
    message = verdict_on(source, tmp_path, "online-softmax").message
    assert "online_softmax.py:14 is a loop that never ends:\n    while start < columns:" in message
    assert "Nothing inside the loop changes columns or start" in message
    source = source.replace("while start < columns:", "while True:")
    assert "Its condition is always true" in verdict_on(source, tmp_path, "online-softmax").message


@pytest.mark.parametrize(
    "body",
    [
        "while n < 3:\n        n += 1",
        "try:\n        while True:\n            values.remove(0)\n    except ValueError:\n        pass",
        "while False:\n        n += 1",
        "while n < 3:\n        if x.numel():\n            break",
        "while values < [1]:\n        values.append(1)",
        "while values < [1]:\n        values[:] = [2]",
        "while len(values) < 1:\n        more(values)",
    ],
)
def test_loop_that_ends_is_no_endless_loop(body: str, tmp_path: Path) -> None:
    file = tmp_path / "vector_add.py"
    helper = "def more(values):\n    values.append(1)\n\n\n"
    file.write_text(changed("    return out", f"    n, values = 0, []\n    {body}\n    return out", helper + SOLUTION))
    assert first_problem(file, "vector_add") is None
