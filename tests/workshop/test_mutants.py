"""`learn verify --mutants`: the mistakes that are made in a model solution, and the fate of each mutant."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.mutants import survivors, trying
from tilesmith.workshop.mutants.cuda_mutants import cuda_mutants
from tilesmith.workshop.mutants.known_equivalents import known_equivalents
from tilesmith.workshop.mutants.mutant import Mutant
from tilesmith.workshop.mutants.survivors import try_mutants
from tilesmith.workshop.mutants.triton_mutants import triton_mutants
from tilesmith.workshop.mutants.trying import Fate, MutantTrial, mutants_of_exercise

KERNEL = """
@triton.jit
def norm(x_ptr, out_ptr, columns, row_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = (column < columns) & (row >= 0)
    x = tl.load(x_ptr + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.where(inside, x, 0.0)
    y = tl.dot(x[:, None], tl.trans(x[None, :]), total) * tl.rsqrt(tl.sum(x, axis=0) / columns + eps)
    tl.debug_barrier()
    tl.store(out_ptr + column, y - x, mask=inside)


def host(x):
    out = torch.zeros_like(x.contiguous())
    norm[(triton.cdiv(x.shape[0], 4), x.stride(0))](x, out)
"""


def made(mutants: list[Mutant]) -> set[tuple[str, str]]:
    return {(one.kind, one.after) for one in mutants}


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("drop-mask", "tl.load(x_ptr + row * row_stride + column)"),
        ("drop-mask", "tl.store(out_ptr + column, y - x)"),
        ("drop-other", "tl.load(x_ptr + row * row_stride + column, mask=inside)"),
        ("other", "1.0"),
        ("drop-condition", "(column < columns)"),
        ("drop-where", "(x)"),
        ("drop-eps", "(tl.sum(x, axis=0) / columns)"),
        ("drop-cast", "tl.load(x_ptr + row * row_stride + column, mask=inside, other=0.0)"),
        ("drop-barrier", "pass"),
        ("drop-store", "pass"),
        ("drop-transpose", "x[None, :]"),
        ("drop-accumulator", "tl.dot(x[:, None], tl.trans(x[None, :]))"),
        ("drop-accumulator", "total = tl.where(inside, x, 0.0)"),
        ("drop-contiguous", "x"),
        ("uncleared", "torch.empty_like"),
        ("dtype", "tl.float16"),
        ("bound", "column <= columns"),
        ("bound", "(columns - 1)"),
        ("loop", "(columns - BLOCK)"),
        ("axis", "(x)[None, :]"),
        ("axis", "1"),
        ("stride", "(row_stride + 1)"),
        ("stride", "x.stride(1)"),
        ("offset", "(tl.arange(0, BLOCK) + 1)"),
        ("swap", "((x) - (y))"),
        ("swap", "tl.dot(tl.trans(x[None, :]), x[:, None], total)"),
        ("operation", "((y) + (x))"),
        ("drop-factor", "(row)"),
        ("function", "tl.max"),
        ("grid", "((x.shape[0]) // (4))"),
        ("grid", "(triton.cdiv(x.shape[0], 4) - 1)"),
        ("grid", "(x.stride(0), triton.cdiv(x.shape[0], 4))"),
    ],
)
def test_triton_mistake_is_made(kind: str, after: str) -> None:
    assert (kind, after) in made(triton_mutants(KERNEL))


def test_every_mutant_differs_in_one_place_and_has_its_own_name() -> None:
    found = triton_mutants(KERNEL)
    assert len({one.source for one in found}) == len({one.name for one in found}) == len(found)
    for one in found:
        compile(one.source, one.name, "exec")
        assert one.after in " ".join(one.source.split())


@pytest.mark.parametrize(
    ("exercise", "kind", "text"),
    [
        ("cuda-reduction", "drop-barrier", "        ;\n"),
        ("cuda-reduction", "drop-clear", "    ;\n    const int blocks"),
        ("cuda-reduction", "bound", "thread <= half"),
        ("cuda-reduction", "bound", "element < elements - 1"),
        ("cuda-reduction", "grid", "elements / THREADS"),
        ("cuda-reduction", "grid", "<<<blocks - 1, "),
        ("cuda-reduction", "drop-atomic", "*total += partial[0];"),
        ("cuda-reduction", "drop-accumulator", "partial[thread] = partial[thread + half]"),
        ("cuda-reduction", "padding", ": 1.0f"),
        ("cuda-rms-norm-vector", "drop-eps", "rsqrtf(partial[0] / columns)"),
        ("cuda-transpose-shared", "axis", "tile[threadIdx.x][row] = "),
        ("cuda-transpose-shared", "padding", "tile[SIDE][SIDE]"),
        ("cuda-copy-first-column", "drop-sizeof", "columns , sizeof(float)"),
    ],
)
def test_cuda_mistake_is_made(exercise: str, kind: str, text: str) -> None:
    found = cuda_mutants((BUILT_IN / exercise / "solution.cu").read_text())
    assert any(one.kind == kind and text in one.source for one in found)


def test_cuda_comments_and_signatures_stay() -> None:
    source = (BUILT_IN / "cuda-reduction" / "solution.cu").read_text()
    for one in cuda_mutants(source):
        assert "// Computes the sum of x; x and total are in GPU memory.\nvoid sum(const float* x," in one.source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "masks"
    shutil.copytree(BUILT_IN / "masks", copy)
    return copy


def fate(folder: Path, name: str) -> tuple[str, str]:
    exercise = load_exercise(folder)
    (mutant,) = [one for one in mutants_of_exercise(exercise) if one.name == name]
    found = MutantTrial(exercise, known_equivalents(folder)).fate(mutant)
    return found.fate, found.why


def test_wrong_mutant_fails_with_its_stage(folder: Path) -> None:
    found, why = fate(folder, "bound: n_elements -> (n_elements - 1)")
    assert found == "failed"
    assert why.startswith("runs: Element")


def test_mutant_that_no_case_shows_survives_with_the_size_that_would_show_it(folder: Path) -> None:
    text = (folder / "exercise.toml").read_text()
    start, end = text.index("[[visible]]"), text.index("[[goals]]")
    sizes = '[[visible]]\nname = "whole"\nelements = 512\n[[hidden]]\nname = "other"\nelements = 256\n'
    (folder / "exercise.toml").write_text(text[:start] + sizes + text[end:].replace('size = "odd"\n', ""))
    text = (folder / "exercise.toml").read_text()
    (folder / "exercise.toml").write_text("\n".join(x for x in text.splitlines() if not x.startswith("measured")))
    found, why = fate(folder, "grid: triton.cdiv(x.numel(), BLOCK_SIZE) -> ((x.numel()) // (BLOCK_SIZE))")
    assert found == "survived"
    assert why.startswith("wrong on a size that the exercise does not check: elements = 1, ")


def test_mutant_with_the_same_bits_is_equivalent(folder: Path) -> None:
    name = "grid: programs -> (programs + 1)"
    assert fate(folder, name) == ("equivalent", "bit-identical on sizes that the exercise does not check")
    (folder / "mutants.toml").write_text(f'[[equivalent]]\nmutants = ["{name}"]\nreason = "All lanes are masked."\n')
    assert fate(folder, name) == ("equivalent", "All lanes are masked.")


def test_damaged_list_of_equivalents_is_refused(folder: Path) -> None:
    (folder / "mutants.toml").write_text('[[equivalent]]\nmutants = "x"\n')
    with pytest.raises(ExerciseError, match=r"every .*equivalent.* has `mutants`"):
        known_equivalents(folder)


def test_listed_mutant_that_does_not_exist_is_reported(folder: Path) -> None:
    (folder / "mutants.toml").write_text('[[equivalent]]\nmutants = ["swap: a -> b"]\nreason = "None."\n')
    # No fork: `try_mutants` starts processes from a thread, and a fork beside other threads may never answer.
    (result,) = try_mutants([load_exercise(folder)], every=12)
    assert result.unknown == ("swap: a -> b",)
    assert result.survivors == []
    assert {one.fate for one in result.fates} <= {"failed", "equivalent"}


def test_mutant_is_stopped_by_its_cpu_time_and_may_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "PATIENCE", 100)
    with trying._limited(1):
        time.sleep(1.1)
    begun = time.process_time()
    with pytest.raises(trying._TooLong), trying._limited(1):
        compute_until(begun + 3)


def compute_until(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def test_parts_of_an_exercise_keep_the_order_of_its_mutants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fates(exercise: Exercise, first: int, last: int, every: int) -> list[Fate]:
        asked.append((first, last))
        return [Fate(one.name, one.line, "failed", "") for one in mutants_of_exercise(exercise)[::every][first:last]]

    monkeypatch.setattr(survivors, "_fates_in_child", fates)
    exercise = load_exercise(folder)
    (result,) = try_mutants([exercise], jobs=1, every=2)
    assert [one.name for one in result.fates] == [one.name for one in mutants_of_exercise(exercise)[::2]]
    assert sorted(asked) == [(0, 8), (8, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.id for one in Catalogue().values() if not one.is_only_questions])
def test_no_mutant_survives(name: str) -> None:
    (result,) = try_mutants([Catalogue()[name]])
    assert [one.name for one in result.survivors] == []
    assert result.unknown == ()
