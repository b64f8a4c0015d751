"""The path of a time with the interpreter in place of a GPU: fresh inputs, poison, guards, samples, the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilesmith.lab.bench.measuring.timing import Rotation
from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task, Verdict, task_at
from tilesmith.lab.judge import task as tasks
from tilesmith.lab.judge.replaying.device import GUARD, DeviceMemory
from tilesmith.lab.judge.replaying.memory import BadTape
from tilesmith.lab.judge.timing.clock import Dishonest, sampled
from tilesmith.lab.judge.timing.device_sets import DeviceSets
from tilesmith.lab.judge.timing.fresh import FreshInputs, bytes_of, mixable, storages_in
from tilesmith.lab.judge.timing.host_stopwatch import HostStopwatch

ZOO = Path(__file__).parents[2] / "judge" / "zoo"
TIMED = Options(seed=5, facts=False, device="cpu")
ADD = """
import torch, triton, triton.language as tl

@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(out + at, a + b, mask=at < n)

"""


@pytest.fixture
def small_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time the spec's own cases: the interpreter stands for the GPU."""
    monkeypatch.setattr(tasks, "SMALLEST_TIMED_BYTES", 0)


@pytest.fixture(scope="module")
def add() -> Task:
    return task_at(ZOO / "tasks" / "add.py", Rules(seconds=120.0))


def verdict_on(judge: Judge, task: Task, text: str) -> Verdict:
    return judge.judge(task, Candidate.of_text(ADD + text), TIMED)


def test_honest_candidate_has_verified_times(warm_judge: Judge, softmax: Task, small_times: None) -> None:
    verdict = warm_judge.judge(softmax, Candidate.of(ZOO / "honest" / "softmax" / "plain.py"), TIMED)
    assert verdict.passed, str(verdict)
    assert verdict.stages["fast"] == "passed"
    times = verdict.times
    assert times is not None
    assert times["median_ms"] > 0
    assert times["sets"] >= 2
    assert times["verified"] >= 8
    assert times["case"] == "even"


@pytest.mark.slow
def test_gradients_are_timed_with_the_forward(warm_judge: Judge, small_times: None) -> None:
    task = task_at(ZOO / "tasks" / "rms_norm.py", Rules(seconds=120.0))
    names = [one for one in (ZOO / "honest" / "rms_norm").glob("*.py") if "autograd" in one.read_text()]
    verdict = warm_judge.judge(task, Candidate.of(names[0]), TIMED)
    assert verdict.passed, str(verdict)
    assert verdict.times is not None
    assert verdict.times["mode"] == "forward and backward"


def test_kernel_that_skips_calls_by_a_counter_is_refused(warm_judge: Judge, add: Task, small_times: None) -> None:
    """The counter lives in memory from before the call; the first calls are right."""
    text = """
COUNT = torch.zeros(1, dtype=torch.int32, device="cuda")

@triton.jit
def sometimes_kernel(x, y, out, count, n, BLOCK: tl.constexpr):
    done = tl.load(count)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (at < n) & (done < 2)
    a, b = tl.load(x + at, mask=mask), tl.load(y + at, mask=mask)
    tl.store(out + at, a + b, mask=mask)
    tl.store(count, done + 1)

def add(x, y):
    out = torch.empty_like(x)
    sometimes_kernel[(1,)](x, y, out, COUNT, x.numel(), BLOCK=2048)
    return out
"""
    verdict = verdict_on(warm_judge, add, text)
    assert not verdict.passed
    assert verdict.times is None


def test_other_launches_at_the_timed_size_are_judged(warm_judge: Judge, add: Task, small_times: None) -> None:
    """Right at every judged size, wrong at the timed one."""
    task = replace(add, given=add.spec.cases[:1], hidden=())
    text = """
def add(x, y):
    out = torch.empty_like(x)
    n = x.numel() if x.numel() < 1000 else 7
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, n, BLOCK=256)
    return out
"""
    verdict = verdict_on(warm_judge, task, text)
    assert verdict.outcome == "fail"
    assert verdict.reason is not None
    assert verdict.reason.kind == "wrong-value"
    assert verdict.reason.sizes == {"n": 1024}
    assert verdict.times is None


def test_pytorch_at_the_timed_size_is_refused(warm_judge: Judge, add: Task, small_times: None) -> None:
    task = replace(add, given=add.spec.cases[:1], hidden=())
    text = """
def add(x, y):
    out = torch.empty_like(x)
    if x.numel() >= 1000:
        return x + y
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
    return out
"""
    verdict = verdict_on(warm_judge, task, text)
    assert verdict.reason is not None
    assert verdict.reason.kind == "torch-computes"
    assert verdict.reward.value == 0.0


def test_every_configuration_of_an_autotuner_is_tried(warm_judge: Judge, add: Task, small_times: None) -> None:
    text = """
tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256, 512)], key=["n"])(add_kernel)

def add(x, y):
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out
"""
    verdict = verdict_on(warm_judge, add, text)
    assert verdict.passed, str(verdict)
    assert verdict.times is not None
    assert verdict.times["configurations"] == 3


def test_case_grows_until_it_leaves_the_cache(softmax: Task) -> None:
    first, second = softmax.timed_cases()
    assert second in softmax.spec.cases
    assert (
        softmax.floor_bytes(tasks.Trial(first, torch.float32, softmax.layouts[0])) or 0
    ) >= tasks.SMALLEST_TIMED_BYTES
    assert first.sizes["cols"] <= 4096


def test_fresh_inputs_differ_in_every_replay_and_repeat_with_the_seed() -> None:
    draws = [{"x": torch.randn(1000), "index": torch.arange(5) + number} for number in range(2)]
    dtypes = dict(zip(("x", "index"), mixable(draws[0], ()), strict=True))
    assert dtypes == {"x": "float32", "index": None}
    contents = tuple(dict(zip(dtypes, map(bytes_of, storages_in(one)), strict=True)) for one in draws)
    fresh, again = (FreshInputs((contents[0], contents[1]), dtypes, 7) for _ in range(2))
    one, other = fresh.at(0, 0)["x"].view(torch.float32), fresh.at(1, 0)["x"].view(torch.float32)
    assert 300 < int((one != other).sum()) < 700
    assert torch.equal(one, again.at(0, 0)["x"].view(torch.float32))
    assert bool(((one == draws[0]["x"]) | (one == draws[1]["x"])).all())
    assert fresh.at(0, 0)["index"].view(torch.int64).tolist() in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])


def test_samples_hold_the_last_replay_and_differ_between_seeds() -> None:
    assert sampled(1, 4)[-1][0] == 19
    assert sampled(1, 4) != sampled(2, 4)


def test_launches_that_stop_working_void_the_times(tmp_path: Path) -> None:
    """A kernel may behave as it likes on a GPU; poisoned outputs show that it did nothing."""
    reference = [0, "float32", 0, [64], [1]]
    step = {"operator": "aten::neg", "args": [{"tensor": reference}], "kwargs": {}, "results": [[1, *reference[1:]]]}
    storages = [{"kind": "input", "name": "0", "bytes": 256}, {"kind": "new", "bytes": 256}]
    tape = {"storages": storages, "steps": [step], "kernels": []}
    draws = tuple({"0": bytes_of(torch.randn(64))} for _ in range(2))
    fresh = FreshInputs((draws[0], draws[1]), {"0": "float32"}, 7)
    sets = DeviceSets(tape, {}, [[1, *reference[1:]]], fresh, tmp_path, device="cpu", allow_any=True, sets=2)
    times = sets.times(HostStopwatch(), Rotation(2, clears=True), seed=1)
    assert times.replays == 20
    for (replay, place), (output,) in sets.samples.items():
        assert torch.equal(output, -fresh.at(replay, place)["0"].view(torch.float32))
    runs = iter(range(1000))
    sets.run = lambda place: None if next(runs) > 20 else DeviceSets.run(sets, place)  # type: ignore[method-assign]
    with pytest.raises(Dishonest, match="unwritten"):
        sets.times(HostStopwatch(), Rotation(2, clears=True), seed=1)


def test_writes_beside_a_tensor_break_its_guard() -> None:
    memory = DeviceMemory([{"kind": "new", "bytes": 40}, {"kind": "input", "name": "0", "bytes": 8}], {}, "cpu")
    memory.reset()
    memory.fill({"0": torch.zeros(8, dtype=torch.uint8)})
    assert memory.guards_hold()
    assert memory.tensor([0, "float32", 0, [10], [1]]).isnan().all()
    memory.places[0].buffer[GUARD - 1] = 0
    assert not memory.guards_hold()
    with pytest.raises(BadTape, match="outside its storage"):
        memory.tensor([0, "float32", 1, [10], [1]])
