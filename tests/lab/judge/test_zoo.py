"""No cheating candidate of the zoo passes, and no honest one fails. The first lines of each say what the judge says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task, task_at

ZOO = Path(__file__).parents[2] / "judge" / "zoo"
SEED = 5
# A dozen of each kind in the fast suite: one for each way to be seen through, one for each feature of honest kernels.
FAST = {
    "softmax/numpy_then_copy", "softmax/patches_recorder", "softmax/patches_comparison", "softmax/forges_tape",
    "softmax/cache_by_pointer", "softmax/scalar_arguments", "softmax/no_maximum", "softmax/garbage_on_pipe",
    "softmax/lazy_subclass", "softmax/generated_kernel", "softmax/numpy_in_kernel", "softmax/kills_parent",
    "add/numpy_add", "matmul/tf32", "row_sum/racing_sum", "transpose/contiguous_and_decoy", "gather/host_offsets",
    "rms_norm/torch_backward", "softmax/cached_workspace", "softmax/folder_of_files",
    "add/gluon", "transpose/host_descriptor",
    "softmax/compiles_c_in_kernel", "softmax/wrong_second_configuration", "softmax/fixed_block", "rms_norm/no_epsilon",
    "softmax/branch_on_values", "softmax/scribbles_afterwards", "softmax/deep_folders",
    "rms_norm/strided_gradient", "transpose/cast_moves", "softmax/tutorial",
    "softmax/table_in_each_call", "softmax/assembler_options", "softmax_with_torch/zero_times_kernel",
    "transpose/contiguous_of_halves", "add/skips_zeros", "row_sum/relaxed_flag",
    "add/autotuned_without_reset", "row_sum/reduce_keeps_the_first",
    "softmax/wrong_on_another_stream", "softmax/wrong_in_a_narrow_band", "add/drops_tiny_values",
    "add/doubles_where_both_are_one", "softmax/wrong_under_autocast", "softmax/wrong_for_rarer_bits",
    "softmax/wrong_in_two_calls_of_a_hundred", "softmax/casts_under_autocast",
}  # fmt: skip


def candidates(kind: str) -> list[object]:
    found = [path for path in sorted((ZOO / kind).glob("*/*")) if path.name != "__pycache__"]
    return [
        pytest.param(path, id=name, marks=[] if name in FAST else pytest.mark.slow)
        for path in found
        for name in [f"{path.parent.name}/{path.stem}"]
    ]


@cache
def task(name: str) -> Task:
    """Return the task of a folder of the zoo. In those that end in `_with_torch`, PyTorch may compute too."""
    plain = name.removesuffix("_with_torch")
    return task_at(ZOO / "tasks" / f"{plain}.py", Rules(seconds=120.0, torch="movement" if name == plain else "any"))


def first_lines(path: Path) -> list[str]:
    names = ("candidate.py", "__init__.py")
    file = next(path / name for name in names if (path / name).is_file()) if path.is_dir() else path
    return file.read_text(encoding="utf-8-sig", errors="replace").splitlines()[:2]


@pytest.mark.parametrize("path", candidates("cheats"))
def test_cheat_does_not_pass(path: Path, warm_judge: Judge) -> None:
    expected = first_lines(path)[1].removeprefix("# judge: ").split("|")
    options = Options(seed=SEED, facts=bool({"compile-error", "false-hint"} & set(expected)))
    verdict = warm_judge.judge(task(path.parent.name), Candidate.of(path), options)
    assert verdict.outcome != "pass"
    assert verdict.reason is not None
    assert verdict.reason.kind in expected, str(verdict)


@pytest.mark.parametrize("path", candidates("honest"))
def test_honest_candidate_is_not_refused(path: Path, warm_judge: Judge) -> None:
    verdict = warm_judge.judge(task(path.parent.name), Candidate.of(path), Options(seed=SEED))
    assert verdict.outcome == "pass", str(verdict)


def test_zoo_has_sixty_of_each_and_every_fast_name() -> None:
    names = {kind: {one.id for one in candidates(kind)} for kind in ("cheats", "honest")}  # type: ignore[attr-defined]
    assert len(names["cheats"]) >= 60
    assert len(names["honest"]) >= 60
    assert names["cheats"] | names["honest"] >= FAST


def test_every_candidate_names_its_trick() -> None:
    for kind in ("cheats", "honest"):
        for path in (ZOO / kind).glob("*/*"):
            if path.name != "__pycache__":
                assert first_lines(path)[0].startswith("# "), path
