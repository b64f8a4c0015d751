"""Input sets of timed calls: distinct, reproducible and cheap."""

from __future__ import annotations

import random

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch import Tensor

from tilesmith.lab.bench.measuring.correctness_gate import judge_outputs
from tilesmith.lab.bench.measuring.timed_calls import TimedCalls
from tilesmith.lab.bench.measuring.timing import Rotation, measure
from tilesmith.spec import Case, Spec

MODES = pytest.mark.parametrize("mode", ["fwd", "bwd", "both"])


def timed(mode: str, calls: list[torch.Size] | None = None) -> TimedCalls:
    def double(x: Tensor) -> Tensor:
        if calls is not None:
            calls.append(x.shape)
        return x * 2

    spec = Spec(
        name="double",
        op=lambda x: x * 2,
        reference=double,
        cases=[Case("five", elements=5)],
        make_inputs=lambda case, dtype, device: {"x": torch.randn(case.elements, dtype=dtype, device=device)},
    )
    return TimedCalls(spec, spec.cases[0], torch.float32, "cpu", mode, spec.op)


@MODES
def test_reference_runs_once_for_all_input_sets(mode: str) -> None:
    calls: list[torch.Size] = []
    made = timed(mode, calls)
    made.add_sets(6)
    made.refresh()
    assert len(calls) <= 1


@MODES
def test_expected_inputs_match_before_and_after_refresh(mode: str) -> None:
    made = timed(mode)
    made.add_sets(2)
    before = {name: value.clone() for name, value in made.sets[0].values.items()}
    assert not torch.equal(made.sets[0].arguments["x"], made.sets[1].arguments["x"])
    for _ in range(2):
        for place in range(2):
            for name, value in made.expected(place).values.items():
                assert torch.equal(value, made.sets[place].values[name])
        made.refresh()
    changed = {name for name, value in made.sets[0].values.items() if not torch.equal(value, before[name])}
    assert changed == {"fwd": {"x"}, "bwd": {"cotangent_0"}, "both": {"x", "cotangent_0"}}[mode]


@MODES
def test_stirred_inputs_change_and_stay_known(mode: str) -> None:
    made = timed(mode)
    made._chance = random.Random(3)
    made.add_sets(3)
    made.refresh()
    before = [one.clone() for one in made.sets[2].values.values()]
    for _ in range(9):
        made.stir(range(3))
        for place in range(3):
            for name, value in made.expected(place).values.items():
                assert torch.equal(value, made.sets[place].values[name]), (mode, name)
    after = made.sets[2].values
    for one, (name, value) in zip(before, after.items(), strict=True):
        assert torch.equal(one.sort().values, value.sort().values)
        assert torch.equal(one, value) == (mode == "bwd" and name == "x"), name


@pytest.mark.parametrize("captures", [True, False], ids=["graph", "events"])
def test_outputs_of_timed_calls_match_their_inputs(captures: bool) -> None:
    """Without a graph, calls of other input sets follow: an output must stay that of its own inputs."""
    made = timed("fwd")
    made._chance = random.Random(3)
    stopwatch = FakeStopwatch(call_ms=5.0, captures=captures)

    def double(x: Tensor) -> Tensor:
        stopwatch.spend()
        return x * 2

    made.function = double
    made.add_sets(3)
    measured = measure(stopwatch, made.calls, Rotation(3), made.refresh, made.stir)
    for place, (output,) in enumerate(measured.outputs):
        assert torch.equal(output, 2 * made.expected(place).arguments["x"])
    assert judge_outputs(made, measured.outputs).wrong is None


def test_call_that_skips_its_work_on_some_sets_is_refused() -> None:
    """Only the last two input sets were compared, so a call could return an old result on all others."""
    made = timed("fwd")
    made.add_sets(6)
    old = [call() for call in made.calls]
    made.refresh()
    honest = [call() for call in made.calls]
    assert judge_outputs(made, honest).wrong is None
    assert "wrong result" in (judge_outputs(made, [*old[:2], *honest[2:]]).wrong or "")
