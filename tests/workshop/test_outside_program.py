"""Programs that pass in their own process by fraud: their check, outside of it, does not agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forked import forking
from tilesmith.lab.judge.conversing.program import Program, ProgramError
from tilesmith.lab.judge.isolation.children import Child, Nursery
from tilesmith.lab.judge.isolation.limits import Limits
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import Exercise
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.isolation.outside_verdict import program_objection
from tilesmith.workshop.isolation.worker import Worker

PROGRAMS = [one.id for one in Catalogue().values() if one.is_program]
NO_STAGES = (
    "import tilesmith.workshop.checking.program_check as check\n"
    "check.ProgramCheck._pass_stages = lambda self: ('goals', [])\n"
)
NEVER_WRONG = "import torch\ntorch.allclose = torch.equal = lambda *given, **named: True\n"
CHEATS = {
    "every stage patched": ("cuda-events", f"{NO_STAGES}def time_ms(work, runs=20): return 0.0\n"),
    "the length read from the work": ("cuda-events", "def time_ms(work, runs=20): return work.milliseconds\n"),
    "the GPU's counters forged": (
        "cuda-events",
        "def time_ms(work, runs=20):\n    for _ in range(runs + 3): work()\n"
        "    work.gpu.events, work.gpu.waits = 100, 1\n    return work.milliseconds\n",
    ),
    "results of the known sizes by heart": (
        "cuda-events",
        "def time_ms(work, runs=20):\n    import torch\n"
        "    for _ in range(runs + 3): work()\n    [torch.cuda.Event(enable_timing=True) for _ in range(2 * runs)]\n"
        "    torch.cuda.synchronize()\n    return {5: 2.0, 11: 0.5, 7: 0.02}.get(runs, 1.0)\n",
    ),
    "the check's own functions called": (
        "rocprof",
        "import sys\nfrom types import SimpleNamespace as N\ndef summarise(trace):\n"
        "    check = sys._getframe(1)\n    dispatches, names = check.f_locals['dispatches'], check.f_globals\n"
        "    return N(kernels=[], idle=names['idle'](dispatches))\n",
    ),
    "the lists of the timer forged": (
        "gemm-pytorch",
        "from typing import NamedTuple\nimport torch\n"
        "class Machine(NamedTuple):\n    flops: float\n    bandwidth: float\n"
        "class Row(NamedTuple):\n    sizes: tuple\n    tflops: float\n    share: float\n    bound: str\n"
        "def sweep(sizes, machine, time_ms, dtype=torch.float16):\n"
        "    time_ms.products.append([(*one, dtype) for one in sizes])\n"
        "    return [Row(one, 1.0, 1.0, 'memory') for one in sizes]\n",
    ),
    "a product that was never computed": (
        "gemm-pytorch",
        (BUILT_IN / "gemm-pytorch" / "solution.py").read_text()
        + "\nfrom tilesmith.lab.judge.conversing import host\n"
        "class _Log(host._Log):\n    def __exit__(self, *error):\n"
        "        operands = torch.zeros(M, K, dtype=D), torch.zeros(K, N, dtype=D)\n"
        "        self.calls = [('mm', operands, torch.ones(M, N, dtype=D))]\n"
        "        return super().__exit__(*error)\nhost._Log = _Log\nhonest = measure\n"
        "def measure(m, n, k, machine, time_ms, dtype):\n    global M, N, K, D\n    M, N, K, D = m, n, k, dtype\n"
        "    return honest(m, n, k, machine, lambda work: time_ms(lambda: None), dtype)\n",
    ),
    "rates without a timing": (
        "perf-report",
        (BUILT_IN / "perf-report" / "solution.py").read_text().replace(
            "triton.testing.do_bench(work, quantiles=[0.5, 0.2, 0.8])", "(work(), (0.5, 0.4, 0.8))[1]"
        ),
    ),
    "a trace written by hand": (
        "profiling",
        "import json\nLABELS = ('attention', 'feed_forward')\ndef step(model, x):\n"
        "    return model.feed_forward(model.attention(x))\n"
        "def profile_steps(model, x, trace):\n    for _ in range(5): step(model, x)\n"
        "    events = [dict(name=one, cat='user_annotation', dur=1) for one in LABELS for _ in range(3)]\n"
        "    trace.write_text(json.dumps(dict(traceEvents=events)))\n    return {one: (3, 3.0) for one in LABELS}\n",
    ),
    "the comparison patched, rows without strides": (
        "mend-llama",
        NEVER_WRONG
        + (BUILT_IN / "mend-llama" / "solution.py").read_text().replace("*x.stride()", "columns, 1"),
    ),
    "the comparison patched, nothing clamped": (
        "torch-compile",
        NEVER_WRONG + (BUILT_IN / "torch-compile" / "solution.py").read_text().replace("-LARGEST, LARGEST", "-99, 99"),
    ),
    "sums that no candidate adds": (
        "autotune",
        (BUILT_IN / "autotune" / "solution.py").read_text().replace("reset_to_zero=[\"out_ptr\"],", ""),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def written(exercise: Exercise, source: str, folder: Path) -> Path:
    file = folder / exercise.file_name
    file.write_text(source)
    return file


@pytest.mark.parametrize("name", PROGRAMS)
def test_solution_passes_outside_of_its_process(name: str, nursery: Nursery) -> None:
    exercise = load_exercise(BUILT_IN / name)
    assert program_objection(nursery, exercise, exercise.solution) is None


@pytest.mark.parametrize("name", CHEATS)
def test_fraud_fails_outside_of_its_process(name: str, nursery: Nursery, tmp_path: Path) -> None:
    exercise = load_exercise(BUILT_IN / CHEATS[name][0])
    verdict = program_objection(nursery, exercise, written(exercise, CHEATS[name][1], tmp_path))
    assert verdict is not None
    assert not verdict.passed
    assert "not outside of it" in verdict.message


def test_fraud_that_passes_inside_is_not_solved(tmp_path: Path) -> None:
    exercise = load_exercise(BUILT_IN / "cuda-events")
    file = written(exercise, CHEATS["the GPU's counters forged"][1], tmp_path)
    assert ProgramCheck(exercise, file).verdict().passed
    with forking(), Worker() as worker:
        verdict = worker.check(exercise, file).verdict
        assert not verdict.passed
        assert "passes in its own process, but not outside of it" in verdict.message
        assert worker.check(exercise, exercise.solution).verdict.passed


class Methods:
    """What a program may be given: only public methods can be reached."""

    def __init__(self) -> None:
        self.secret = 7

    def double(self, number: int) -> int:
        return 2 * number


@pytest.fixture
def program(nursery: Nursery, tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "program.py").write_text(
        "import os, torch\n"
        "def doubled(given): return given.double(4)\n"
        "def asks(given, question): return given._host.call_theirs(dict(question), (), {}, True)\n"
        "def back(given): return given\n"
        "def lines(path): return path.read_text().splitlines()\n"
        "def fails(): raise ValueError('no such row')\n"
        "def leaves(): os._exit(3)\n"
        "def recurses(given): return given(recurses)\n"
        "class Row:\n    rate = 2.5\n    def twice(self): return 2 * self.rate\n"
    )
    child: Child = nursery.child("converse", str(tmp_path), Limits(30.0), confined=True)
    yield Program(child, "program.py")
    child.end()


def test_program_calls_public_methods_of_what_it_is_given(program: Program) -> None:
    assert program.doubled(Methods()) == 8


@pytest.mark.parametrize(
    "question",
    [
        {"of": 0, "method": "secret"},
        {"of": 0, "method": "__init__"},
        {"of": 0, "method": "__getattribute__"},
        {"of": 0},
        {"of": 99, "method": "double"},
        {"lent": "os.system"},
        {"lent": "torch.cuda.synchronize"},
    ],
    ids=str,
)
def test_forged_question_reaches_nothing(program: Program, question: dict[str, object]) -> None:
    with pytest.raises(ProgramError, match="asks for something that is not there"):
        program.asks(Methods(), question)


def test_strides_files_objects_and_errors_travel(program: Program, tmp_path: Path) -> None:
    x = torch.arange(6.0).view(2, 3).T
    assert program.back(x).stride() == (1, 3)
    assert torch.equal(program.back(x), x)
    given = Methods()
    assert program.back(given) is given
    assert program.Row().twice() == 5.0
    assert program.back(float("inf")) == float("inf")
    path = tmp_path / "given.txt"
    path.write_text("a\nb")
    assert program.lines(path) == ["a", "b"]
    assert not hasattr(program, "missing")
    with pytest.raises(ProgramError, match="no such row"):
        program.fails()


def test_calls_that_never_end_are_ended(program: Program) -> None:
    with pytest.raises((ProgramError, RecursionError)):
        program.recurses(lambda again: again(lambda inner: inner(again)))


def test_program_that_leaves_is_an_error(program: Program) -> None:
    with pytest.raises(ProgramError, match="status 3"):
        program.leaves()
