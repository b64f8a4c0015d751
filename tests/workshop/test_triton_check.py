"""Every stage of a check, on files with one mistake each: the stage that fails, and the message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import SOLUTION, changed, verdict_on, wrong_variant

from tilesmith.toolchain.compiler import DEFAULT_TARGETS
from tilesmith.workshop.checking.evaded_work import one_element_at_a_time
from tilesmith.workshop.checking.loading import load_module
from tilesmith.workshop.checking.traced_call import trace_call
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise_file import load_exercise

# One element each, a sum, a loop over blocks with a product, and one that is mended.
SOLVED_FIRST = {"vector-add", "reduction", "flash-attention", "interpreter-debugging"}


def with_kernels() -> Iterator[Any]:
    """Yield the exercises with a kernel. All but a few of them are slow tests."""
    found = {exercise.id for exercise in Catalogue().values() if exercise.has_kernels}
    assert found >= SOLVED_FIRST
    for name in sorted(found):
        yield pytest.param(name, marks=() if name in SOLVED_FIRST else (pytest.mark.slow,))


@pytest.mark.parametrize("name", list(with_kernels()))
def test_every_solution_passes_with_all_goals_met(name: str, tmp_path: Path) -> None:
    exercise = Catalogue()[name]
    verdict = verdict_on(exercise.solution.read_text(), tmp_path, name)
    assert verdict.passed, verdict.message
    assert [goal.met for goal in verdict.goals] == [True] * len(exercise.goals)


@pytest.mark.parametrize(
    ("old", "new", "stage", "words"),
    [
        ("x + y)", "x + y", "parses", ["vector_add.py:13 is not valid Python: '(' was never closed", "^"]),
        ("x + y)", "...)", "parses", ["vector_add.py:13 is the last gap to fill", "tl.store("]),
        ("def vector_add", "def add_vectors", "parses", ["no function 'vector_add'", "reset"]),
        ("x + y)", "x @ unknown)", "compiles", ["vector_add.py:13", "does not compile for cuda:90", "unknown"]),
        ("x + y)", "torch.add(x, y))", "compiles", ["vector_add.py:13", "PyTorch, NumPy and math", "function of tl"]),
        ("BLOCK_SIZE = 256", "BLOCK_SIZE = 100", "compiles", ["power of 2"]),
        ("torch.empty_like(x)", "torch.empty(7)", "runs", ["store to out_ptr[7]", "elements = 256", "Mask off"]),
        ("out = torch", "out = nothing", "runs", ["vector_add.py:18 raises NameError"]),
        ("    return out", "    pass", "runs", ["returns None", "return"]),
        ("return out", "return add_kernel[(1,)](x, y, out, BLOCK_SIZE=BLOCK_SIZE)", "runs", ["what the launch"]),
        ("=BLOCK_SIZE)", "=BLOCK_SIZE, num_warp=4)", "runs", ["vector_add.py:20 raises KeyError", "num_warps"]),
        ("out = torch.empty_like(x)", "out = []", "runs", ["vector_add.py:20 raises TypeError: out_ptr: failed to"]),
        ("x + y)", "x + y, mask=offsets != 300)", "runs", ["Program (1, 0, 0) has this address, but the mask of the"]),
        ("(programs,)", "(1,)", "runs", ["Element [256] of the result was not written", "elements = 1024"]),
        ("    return out", "    return torch.add(x, y)", "runs", ["vector_add.py:21", "PyTorch", "`add`"]),
        ("    return out", "    return out.clone()", "runs", ["does not come from a kernel"]),
        ("    add_kernel[", "    0 and add_kernel[", "runs", ["No kernel was launched"]),
        ("BLOCK_SIZE = 256", "BLOCK_SIZE = 512", "runs", ["launched with the grid (0, 1, 1)", "no program"]),
        ("tl.load(x_ptr", "tl.laod(x_ptr", "compiles", ["vector_add.py:11", "Did you mean tl.load?"]),
        ("return out", "return outt", "runs", ["vector_add.py:21", "Did you mean out?"]),
        ("x_ptr + offsets)", "out_ptr + offsets)", "runs", ["loads out_ptr[0], which nobody has written"]),
        ("x + y)", "x - y)", "right", ["program (0, 0, 0) of add_kernel, vector_add.py:13", "tl.store(out_ptr"]),
        ("    tl.store(", "    tl.store(x_ptr + offsets, x + 1)\n    tl.store(", "right", ["changes its input"]),
        ("x + y)", "x + y + 0 * tl.load(x_ptr + offsets))", "goals", ["loads_per_element is 2 (x_ptr on lines 11"]),
    ],
)  # fmt: skip
def test_mistake_fails_at_its_stage_with_explanation(
    tmp_path: Path, old: str, new: str, stage: str, words: list[str]
) -> None:
    verdict = verdict_on(changed(old, new), tmp_path)
    assert (verdict.passed, verdict.stage) == (False, stage), verdict.message
    for word in words:
        assert word in verdict.message
    assert str(tmp_path) not in verdict.message


def test_compile_error_is_explained(tmp_path: Path) -> None:
    verdict = verdict_on(changed("x_ptr + offsets)", "x_ptr + offsets, other=0)"), tmp_path)
    assert verdict.stage == "compiles"
    assert "does not compile for cuda:90: `other` cannot be provided without `mask`.\n" in verdict.message
    assert "and without a mask there are none. Pass mask= too." in verdict.message


def test_message_lists_the_lines_of_all_gaps(tmp_path: Path) -> None:
    source = changed("x + y)", "x + y)  # TODO", changed("tl.load(x_ptr + offsets)", "..."))
    assert verdict_on(source, tmp_path).message.endswith("2 gaps are left, on lines 11, 13.")


def test_ellipsis_in_an_index_is_no_gap(tmp_path: Path) -> None:
    assert verdict_on(changed("    return out", "    return out[..., :]"), tmp_path).passed


def test_cached_result_fails_at_right(tmp_path: Path) -> None:
    kept = changed("    return out", "    return KEPT.setdefault(x.shape, out)", f"KEPT = {{}}\n{SOLUTION}")
    verdict = verdict_on(kept, tmp_path)
    assert verdict.stage == "right"
    assert "the same memory" in verdict.message


def test_result_of_an_earlier_input_fails_at_right(tmp_path: Path) -> None:
    """Every call has new output memory and stores by a kernel, but a second call gives the first call's result."""
    kept = changed(
        "    programs =",
        "    x, y = KEPT.setdefault((x.shape, x.dtype), (x, y))\n    programs =",
        f"KEPT = {{}}\n{SOLUTION}",
    )
    verdict = verdict_on(kept, tmp_path)
    assert verdict.stage == "right"
    assert "seems to return an earlier result" in verdict.message


def test_reused_output_memory_fails_at_right(tmp_path: Path) -> None:
    kept = changed("torch.empty_like(x)", "KEPT.setdefault(x.shape, torch.empty_like(x))", f"KEPT = {{}}\n{SOLUTION}")
    verdict = verdict_on(kept, tmp_path)
    assert verdict.stage == "right"
    assert "Allocate a new output" in verdict.message


def test_result_that_depends_on_the_order_of_programs_fails_at_right(tmp_path: Path) -> None:
    source = wrong_variant("prefix-scan", "running_total")
    verdict = verdict_on(source, tmp_path, "prefix-scan")
    assert verdict.stage == "right"
    assert "when the last program runs first" in verdict.message
    assert "second launch" in verdict.message


def test_kernel_from_another_file_fails_at_runs(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(SOLUTION)
    source = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom elsewhere import vector_add\n"
    verdict = verdict_on(source, tmp_path)
    assert verdict.stage == "runs"
    assert "add_kernel from elsewhere.py" in verdict.message


TUNED = SOLUTION.replace(
    "@triton.jit",
    '@triton.autotune([triton.Config({"BLOCK_SIZE": size}) for size in (256, 128)], key=["x_ptr"])\n@triton.jit',
).replace(", BLOCK_SIZE=BLOCK_SIZE)", ")")


def test_tuned_kernel_must_run_with_every_candidate(tmp_path: Path) -> None:
    verdict = verdict_on(TUNED, tmp_path)  # its grid is for blocks of 256
    assert verdict.stage == "runs"
    assert "Element [128] of the result was not written" in verdict.message
    assert "with the candidate BLOCK_SIZE = 128" in verdict.message
    follows = changed("[(programs,)]", '[lambda chosen: (triton.cdiv(x.numel(), chosen["BLOCK_SIZE"]),)]', TUNED)
    assert verdict_on(follows, tmp_path).passed


def test_goals_hold_for_every_candidate(tmp_path: Path) -> None:
    source = wrong_variant("gemm-3", "small_tiles_too")
    verdict = verdict_on(source, tmp_path, "gemm-3", hidden=())
    assert verdict.stage == "goals"
    assert "loads_per_element of a_ptr is 4" in verdict.message
    assert "with the candidate TILE_ROWS = 32, TILE_COLUMNS = 32" in verdict.message
    assert [goal.met for goal in verdict.goals] == [True, True, True, False, True]


def test_failing_hidden_case_is_described(tmp_path: Path) -> None:
    source = changed("offsets < n_elements", "offsets <= n_elements", (BUILT_IN / "masks" / "solution.py").read_text())
    verdict = verdict_on(source, tmp_path, "masks")
    assert verdict.stage == "runs"
    assert "elements = 1000" in verdict.message


@pytest.mark.parametrize(
    "name",
    [
        "reduction",
        "gemm-0",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("rms-norm", "cross-entropy", "flash-attention", "conv2d", "triangle-multiply")
        ),
    ],
)
def test_masked_load_without_other_fails_although_the_interpreter_reads_zeros(name: str, tmp_path: Path) -> None:
    source = wrong_variant(name, "forgets_other")
    verdict = verdict_on(source, tmp_path, name)
    assert verdict.stage == "runs"
    assert "masked lanes of this load" in verdict.message
    assert "other=" in verdict.message


def test_lesson_of_a_case_follows_its_wrong_result(tmp_path: Path) -> None:
    source = changed("+ eps)", "+ 0 * eps)", (BUILT_IN / "rms-norm" / "solution.py").read_text())
    verdict = verdict_on(source, tmp_path, "rms-norm", hidden=["tiny-values"])
    assert verdict.stage == "right"
    assert verdict.message.endswith("Is eps added to the mean square, under the root, and is it the argument eps?")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "gradient * 2 * tl.maximum(x, 0.0), mask=mask",
            "gradient * 2 * tl.maximum(x, 0.0)",
            "_kernel (autograd.py:23)",
        ),
        ("ctx.save_for_backward(x)", "SquaredReLUFunction.x = x", "uses what the second call saved"),
    ],
)
def test_backward_that_fails_is_explained(old: str, new: str, words: str, tmp_path: Path) -> None:
    source = changed(old, new, (BUILT_IN / "autograd" / "solution.py").read_text())
    source = source.replace("(x,) = ctx.saved_tensors", "x = SquaredReLUFunction.x") if "ReLU" in new else source
    verdict = verdict_on(source, tmp_path, "autograd", hidden=["odd"])
    assert verdict.stage == "right"
    assert words in verdict.message


def test_message_names_the_line_where_a_nan_is_born(tmp_path: Path) -> None:
    source = (BUILT_IN / "silu" / "solution.py").read_text()
    load = next(line for line in source.splitlines() if "x = tl.load" in line)
    verdict = verdict_on(source.replace(load, f"{load}\n    x = x + 0 * tl.log(x)"), tmp_path, "silu", hidden=())
    assert verdict.stage == "right"
    number = source.splitlines().index(load) + 2
    assert f"The NaN is born on silu.py:{number}\n    x = x + 0 * tl.log(x)" in verdict.message


def test_race_counts_each_element_once_and_advises_an_atomic(tmp_path: Path) -> None:
    source = wrong_variant("reduction", "last_one_wins")
    verdict = verdict_on(source, tmp_path, "reduction")
    assert "(1 element in total)" in verdict.message
    assert "tl.atomic_add" in verdict.message


def test_compile_error_names_the_case(tmp_path: Path) -> None:
    source = (BUILT_IN / "two-dimensional-tiles" / "solution.py").read_text()
    verdict = verdict_on(source.replace("[:, None]", "", 1), tmp_path, "two-dimensional-tiles")
    assert verdict.stage == "compiles"
    assert "(tried with rows = " in verdict.message


def test_forbidden_copy_is_named(tmp_path: Path) -> None:
    source = wrong_variant("strides", "copies_first")
    assert "`contiguous`" in verdict_on(source, tmp_path, "strides").message


ONE_PROGRAM = (
    ("    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)\n",
     "    for start in range(0, n, BLOCK_SIZE):\n        offsets = start + tl.arange(0, BLOCK_SIZE)\n    "),
    ("out_ptr, BLOCK_SIZE:", "out_ptr, n, BLOCK_SIZE:"),
    ("    y = tl.load", "        y = tl.load"),
    ("    tl.store", "        tl.store"),
    ("[(programs,)](x, y, out,", "[(1,)](x, y, out, x.numel(),"),
)  # fmt: skip
LAUNCH_PER_ROW = (
    ("softmax_kernel[(rows,)](x, out, columns, x.stride(0), out.stride(0),",
     "[softmax_kernel[(1,)](x[row], out[row], columns, 0, 0,"),
    ("next_power_of_2(columns))", "next_power_of_2(columns)) for row in range(rows)]"),
)  # fmt: skip
VIEW = (
    ("torch.empty((columns, rows),", "torch.empty((rows, columns),"),
    ("column[None, :] * rows + row[:, None]", "row[:, None] * columns + column[None, :]"),
    ("return out", "return out.t()"),
)
OTHER_SIZES = (("    out = ", "    if columns > 4096:\n        return torch.softmax(x, dim=-1)\n    out = "),)


@pytest.mark.parametrize(
    ("exercise", "changes", "stage", "words"),
    [
        ("vector-add", ONE_PROGRAM, "goals", "one program does all the work"),
        ("softmax", LAUNCH_PER_ROW, "goals", "launches 4 kernels, where 1 is enough"),
        ("transpose-2", VIEW, "right", "the result is a view with the strides (1, 64)"),
        ("softmax", OTHER_SIZES, "runs", "PyTorch does this part (`softmax`) at sizes that the check does not try"),
    ],
    ids=["one-program", "launch-per-row", "view", "other-sizes"],
)
def test_right_result_that_evades_the_work_fails(
    exercise: str, changes: Sequence[tuple[str, str]], stage: str, words: str, tmp_path: Path
) -> None:
    source = (BUILT_IN / exercise / "solution.py").read_text()
    for old, new in changes:
        source = changed(old, new, source)
    verdict = verdict_on(source, tmp_path, exercise, hidden=())
    assert (verdict.passed, verdict.stage) == (False, stage), verdict.message
    assert words in verdict.message


FOUR_ROWS_PER_PROGRAM = (
    ("tl.program_id(0)", "tl.program_id(0) * 4 + tl.arange(0, 4)[:, None]"),
    ("tl.arange(0, BLOCK_SIZE)", "tl.arange(0, BLOCK_SIZE)[None, :]"),
    ("mask = column < columns", "mask = (row < rows) & (column < columns)"),
    ("(x_ptr, out_ptr, columns,", "(x_ptr, out_ptr, rows, columns,"),
    ("(x, out, columns,", "(x, out, rows, columns,"),
    ("[(rows,)]", "[(triton.cdiv(rows, 4),)]"),
    ("axis=0)", "axis=1)[:, None]"),
)


def test_several_rows_per_program_pass(tmp_path: Path) -> None:
    source = (BUILT_IN / "softmax" / "solution.py").read_text()
    for old, new in FOUR_ROWS_PER_PROGRAM:
        source = changed(old, new, source)
    verdict = verdict_on(source, tmp_path, "softmax", hidden=())
    assert verdict.passed, verdict.message


def test_kernel_of_single_elements_is_told_to_use_blocks(tmp_path: Path) -> None:
    inputs, told = {"x": torch.ones(8), "y": torch.ones(8)}, []
    for size in (1, 8):
        file = tmp_path / f"block_{size}.py"
        file.write_text(changed("BLOCK_SIZE = 256", f"BLOCK_SIZE = {size}"))
        function = load_module(file).vector_add
        call = trace_call(function, inputs, file, targets=DEFAULT_TARGETS[:1])
        told.append((call, function))
    (single, _), (block, model) = told
    assert "every load moves one element, from line 11 on" in (one_element_at_a_time(single, model, inputs) or "")
    assert one_element_at_a_time(block, model, inputs) is None


@pytest.mark.slow
def test_check_refuses_single_elements(tmp_path: Path) -> None:
    verdict = verdict_on(changed("BLOCK_SIZE = 256", "BLOCK_SIZE = 1"), tmp_path, hidden=())
    assert (verdict.passed, verdict.stage) == (False, "goals"), verdict.message
    assert "every load moves one element" in verdict.message


def test_store_whose_mask_is_never_true_is_named(tmp_path: Path) -> None:
    source = changed("x + y)", "x + y, mask=offsets < 0)")
    message = verdict_on(source, tmp_path, hidden=()).message
    assert "vector_add.py:13" in message
    assert "the mask of the store is False there" in message


def test_missing_mask_is_named_with_its_line(tmp_path: Path) -> None:
    source = (BUILT_IN / "masks" / "solution.py").read_text()
    clamped = changed("x_ptr + offsets, mask=mask)", "x_ptr + tl.minimum(offsets, n_elements - 1))", source)
    assert "missing_masks is 1 (line 12)" in verdict_on(clamped, tmp_path, "masks", hidden=()).message


def test_layout_of_a_hidden_case_is_said_in_words(tmp_path: Path) -> None:
    source = wrong_variant("rms-norm", "ignores_the_stride")
    verdict = verdict_on(source, tmp_path, "rms-norm", hidden=["one-column"])
    assert "row-strided (gaps between the rows in memory)" in verdict.message


def test_torch_in_a_test_of_the_learner_is_allowed(tmp_path: Path) -> None:
    source = f"{SOLUTION}\n\ndef test():\n    assert torch.equal(vector_add(x, x), torch.add(x, x))\n"
    assert verdict_on(source, tmp_path).passed


def test_compiling_ahead_leaves_one_kernel_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, exercise = tmp_path / "cache", load_exercise(BUILT_IN / "masks")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    TritonCheck(exercise, exercise.solution).compile_ahead()
    ahead = set(cache.rglob("*.cubin"))
    assert len(ahead) == 8, "two dtypes with and without alignment, each for one element and for more"
    assert TritonCheck(exercise, exercise.solution).verdict().passed
    assert len(set(cache.rglob("*.cubin")) - ahead) == 1


def test_compiling_ahead_follows_the_sweep_and_survives_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, exercise = tmp_path / "cache", load_exercise(BUILT_IN / "block-size")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    file = tmp_path / exercise.file_name
    file.write_text(changed("    x =", "    unknown()\n    x =", exercise.solution.read_text()))
    TritonCheck(exercise, file).compile_ahead()
    assert not set(cache.rglob("*.cubin"))
    TritonCheck(exercise, exercise.solution).compile_ahead()
    assert len(set(cache.rglob("*.cubin"))) >= 6


def test_error_at_right_is_explained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a check runs
    source = (BUILT_IN / "autograd" / "solution.py").read_text()
    message = verdict_on(changed("ctx.save_for_backward(x)", "pass", source), tmp_path, "autograd", hidden=()).message
    assert message.count("Call ctx.save_for_backward") == 1


@pytest.mark.parametrize(
    "allocated",
    [
        "torch.empty(rows, columns)",
        "torch.zeros(x.shape, dtype=x.dtype)",
        "torch.full((rows, columns), 0.0)",
        "torch.empty_strided((rows, columns), (columns, 1))",
        "torch.tensor([[0.0] * columns] * rows)",
    ],
)
def test_result_without_the_device_of_its_input_fails(allocated: str, tmp_path: Path) -> None:
    source = changed("torch.empty_like(x)", allocated, (BUILT_IN / "strides" / "solution.py").read_text())
    verdict = verdict_on(source, tmp_path, "strides", hidden=["odd"])
    assert verdict.stage == "runs", verdict.message
    assert "out_ptr of add_row_numbers_kernel would be on the CPU" in verdict.message
    assert "device=x.device" in verdict.message


@pytest.mark.parametrize(
    "allocated",
    [
        "x.new_empty(rows, columns)",
        "torch.empty(rows, columns, dtype=x.dtype, device=x.device)",
        "torch.empty(rows, columns).to(x.device, x.dtype)",
        "torch.empty(rows, columns, dtype=x.dtype).to(x)",
        "torch.empty(rows, columns, dtype=x.dtype, device='cuda' if torch.cuda.is_available() else 'cpu')",
        "torch.zeros_like(x, memory_format=torch.contiguous_format)",
    ],
)
def test_result_on_the_device_of_its_input_passes(allocated: str, tmp_path: Path) -> None:
    source = changed("torch.empty_like(x)", allocated, (BUILT_IN / "strides" / "solution.py").read_text())
    verdict = verdict_on(source, tmp_path, "strides", hidden=["odd"])
    assert verdict.passed, verdict.message


def test_device_of_a_context_is_seen(tmp_path: Path) -> None:
    source = (BUILT_IN / "strides" / "solution.py").read_text()
    source = changed(
        "    out = torch.empty_like(x)",
        "    with torch.device(x.device):\n        out = torch.empty(rows, columns, dtype=x.dtype)",
        source,
    )
    verdict = verdict_on(source, tmp_path, "strides", hidden=["odd"])
    assert verdict.passed, verdict.message


def test_gradient_without_the_device_of_its_input_fails(tmp_path: Path) -> None:
    source = (BUILT_IN / "autograd" / "solution.py").read_text()
    at = source.index("torch.empty_like", source.index("def backward"))
    source = source[:at] + source[at:].replace("torch.empty_like(x)", "torch.empty(x.shape)", 1)
    verdict = verdict_on(source, tmp_path, "autograd", hidden=[])
    assert verdict.stage == "runs", verdict.message
    assert "would be on the CPU" in verdict.message


@pytest.mark.parametrize(
    ("exercise", "old", "new"),
    [
        ("transpose-2", "dtype=x.dtype", "dtype=torch.float32"),
        ("transpose-0", "dtype=x.dtype, ", ""),
        ("strides", "torch.empty_like(x)", "torch.empty_like(x, dtype=torch.float32)"),
        ("sparse-rows", "dtype=x.dtype", "dtype=torch.float32"),
        ("reduction", "out = torch.empty(1, dtype=x.dtype", "out = torch.empty(1, dtype=torch.float32"),
    ],
)
def test_result_without_the_dtype_of_its_input_fails(exercise: str, old: str, new: str, tmp_path: Path) -> None:
    source = changed(old, new, (BUILT_IN / exercise / "solution.py").read_text())
    verdict = verdict_on(source, tmp_path, exercise, hidden=[])
    assert verdict.stage == "right", verdict.message
    assert "For inputs in float16, the result would be in float32, but must be in float16" in verdict.message


def test_only_the_result_has_the_dtype_of_the_input(tmp_path: Path) -> None:
    source = changed(
        "partial = torch.empty(programs, dtype=x.dtype",
        "partial = torch.empty(programs, dtype=torch.float32",
        (BUILT_IN / "reduction" / "solution.py").read_text(),
    )
    verdict = verdict_on(source, tmp_path, "reduction", hidden=[])
    assert verdict.passed, verdict.message


def test_scratch_memory_of_earlier_calls_passes(tmp_path: Path) -> None:
    source = (BUILT_IN / "reduction" / "solution.py").read_text()
    partial = "torch.empty(programs, dtype=x.dtype, device=x.device)"
    source = "KEPT = {}\n" + changed(partial, f"KEPT.setdefault((x.shape, x.dtype), {partial})", source)
    verdict = verdict_on(source, tmp_path, "reduction", hidden=[])
    assert verdict.passed, verdict.message
