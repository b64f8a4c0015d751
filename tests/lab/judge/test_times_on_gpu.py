"""Times on a real GPU: verified replays, the definition's time, Gluon kernels, work that depends on the size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task, task_at

# Alone: the judge measures the GPU's limits, for which other tests may leave neither memory nor time.
pytestmark = [pytest.mark.gpu, pytest.mark.alone]
ZOO = Path(__file__).parents[2] / "judge" / "zoo"


def test_plain_softmax_is_timed_against_the_definition(warm_judge: Judge, softmax: Task) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of(ZOO / "honest" / "softmax" / "plain.py"), Options(seed=5))
    assert verdict.passed, str(verdict)
    times = verdict.times
    assert times is not None, verdict.notes
    assert times["method"] == "graph replay"
    assert 0.001 < times["median_ms"] < 10
    assert 0.1 < times["share_of_limit"] < 1.3
    assert times["speedup"] > 0.2
    assert verdict.reward.parts["speed"] > 0


def test_gluon_kernel_is_judged_on_the_gpu(warm_judge: Judge) -> None:
    files = [one for one in (ZOO / "honest").glob("*/*.py") if b"gluon" in one.read_bytes()]
    for file in files:
        task = task_at(ZOO / "tasks" / f"{file.parent.name}.py", Rules(seconds=15.0))
        verdict = warm_judge.judge(task, Candidate.of(file), Options(seed=5, facts=False))
        assert verdict.passed, str(verdict)


def test_kernel_that_breaks_at_the_timed_size_is_not_timed_there(warm_judge: Judge, softmax: Task) -> None:
    text = (ZOO / "honest" / "softmax" / "plain.py").read_text()
    broken = text.replace("def softmax(x", "def softmax(x, *_") + (
        "\n\n_right = softmax\n\n\ndef softmax(x):\n    out = _right(x)\n"
        "    return out if x.shape[0] < 1000 else torch.empty_like(out)\n"
    )
    verdict = warm_judge.judge(softmax, Candidate.of_text(broken), Options(seed=5, facts=False))
    assert verdict.times is None or verdict.times["sizes"]["rows"] < 1000
