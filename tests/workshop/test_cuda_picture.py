"""The picture of a learner's own CUDA file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesmith.workshop.checking.verdict import GoalResult, Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.cuda.access_counts import Access, ProgramCounts
from tilesmith.workshop.cuda.check import CudaCheck
from tilesmith.workshop.publishing.cuda_picture import picture_of_cuda_check


@pytest.fixture
def check(tmp_path: Path) -> CudaCheck:
    file = tmp_path / "cuda_silu.cu"
    file.write_text("#include <cuda_runtime.h>\nint a = b < 1;\nout[i] = x[i];\n")
    return CudaCheck(load_exercise(BUILT_IN / "cuda-silu"), file)


def test_missed_goal_is_drawn_with_sectors_and_the_marked_line(check: CudaCheck) -> None:
    accesses = (
        Access("store", "global", "cuda_silu.cu:3", requests=2, lanes=64, moved=32, least=8),
        Access("load", "global", "cuda_silu.cu:3", requests=2, lanes=32, moved=8, least=8),
        Access("load", "global", "harness.cu:9", requests=1, lanes=32, moved=4, least=4),
    )
    check._counts = ProgramCounts({"launches": 3, "threads": 3328, "copies": 0}, accesses)
    goals = [GoalResult("sector_efficiency", 0.25, "≥ 0.9", False)]
    page = picture_of_cuda_check(check, Verdict("cuda-silu", False, "goals", "the store on cuda_silu.cu:3", goals))
    assert "16 sectors of 32 bytes; 4 would do." in page
    assert page.count('class="needless"') == 12
    assert page.count('class="needed"') == 8
    assert page.count('class="lane"') == 32 + 16
    assert "<strong>3,328</strong> threads" in page
    assert "copies" not in page
    assert "0.25" in page
    assert '<tr id="line-3" class="bad">' in page


def test_file_that_does_not_compile_is_drawn_without_accesses(check: CudaCheck) -> None:
    page = picture_of_cuda_check(check, Verdict("cuda-silu", False, "compiles", "cuda_silu.cu:2\n    no b", []))
    assert '<tr id="line-2" class="bad"><td>2</td><td><code>int a = b &lt; 1;</code>' in page
    assert "One warp" not in page
