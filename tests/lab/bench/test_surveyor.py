"""Checking and timing drawn cases: on a CPU, with a stopwatch that the test sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch import Tensor

from tilesmith.cli.operator_source import operator_spec
from tilesmith.hardware.devices import device
from tilesmith.lab.bench.measuring.timing import Action, Rotation
from tilesmith.lab.bench.roofline.device_limits import datasheet_limits
from tilesmith.lab.bench.running.bench_units import Source
from tilesmith.lab.bench.running.child_process import About, Event, Job, Started, run_job
from tilesmith.lab.bench.survey.compiling import compile_ahead
from tilesmith.lab.bench.survey.drawing import Drawn
from tilesmith.lab.bench.survey.racing import prepared, sets_wanted, timed
from tilesmith.lab.bench.survey.survey_result import Journal, Outcome, SurveyError, content, read
from tilesmith.lab.bench.survey.surveyor import DrawnCase, Surveyor, chosen_rivals
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import use
from tilesmith.spec import Case, Cost, Spec, Work

LIMITS = replace(datasheet_limits(device("h200")), cache_bytes=1024, launch_us=2.0)
FORKED = pytest.mark.usefixtures("forked")
SMALL: Drawn = {"rows": 4, "columns": 33, "dtype": "float32"}


def double(x: Tensor) -> Tensor:
    return 2 * x


def spec_with(op: Callable[..., Any] = double, **rivals: Callable[..., Any]) -> Spec:
    def cost(case: Case, dtype: torch.dtype) -> Cost:
        moved = Work(2 * case.rows * case.cols * dtype.itemsize, case.rows * case.cols)
        return Cost(moved, moved)

    return Spec(
        name="double", op=op, reference=double, cases=[Case("small", rows=8, cols=16)], cost=cost, rivals=rivals,
        make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)},
    )  # fmt: skip


def surveyed(spec: Spec, stopwatch: FakeStopwatch | None = None, drawn: Drawn = SMALL) -> Outcome:
    surveyor = Surveyor(stopwatch or FakeStopwatch(), LIMITS, device="cpu")
    rivals = tuple(name for name in chosen_rivals(spec, None))
    return surveyor.row(DrawnCase(spec.name, Source(lambda: spec), 0, drawn, rivals))


def test_right_operator_gets_times_beside_its_rivals() -> None:
    outcome = surveyed(spec_with(other=double))
    assert outcome.wrong is None
    assert (outcome.op, outcome.name, outcome.drawn) == ("double", "4×33 fp32", SMALL)
    for mode in ("fwd", "bwd"):
        direction = outcome.directions[mode]
        assert direction.device_ms == pytest.approx({"tilesmith": 0.1, "torch": 0.1, "other": 0.1})
        assert direction.bytes == 2 * 4 * 33 * 4
        assert direction.copy_ms == pytest.approx(direction.bytes / 4.8e9)
        assert direction.errors == {}


def test_wrong_result_is_recorded_and_not_timed() -> None:
    def off_in_the_last_element(x: Tensor) -> Tensor:
        made = 2 * x
        return torch.cat((made[..., :-1], made[..., -1:] * 1.5), -1)

    outcome = surveyed(spec_with(off_in_the_last_element))
    assert outcome.directions == {}
    assert outcome.wrong is not None
    assert outcome.wrong.startswith("tilesmith: forward: element 32 is")
    assert "4 of 132 elements are wrong" in outcome.wrong


def test_wrong_gradient_is_recorded() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    outcome = surveyed(
        spec_with(
            lambda x: Double.apply(x)  # type: ignore[no-untyped-call]  # PyTorch has no types here
        )
    )
    assert outcome.wrong is not None
    assert outcome.wrong.startswith("tilesmith: gradient x: element 0")


def test_raising_operator_is_a_failure_of_its_case() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("out of registers\nand more")

    outcome = surveyed(spec_with(fails))
    assert outcome.wrong == "tilesmith: RuntimeError: out of registers"


def test_failing_and_wrong_rivals_are_recorded_and_not_fatal() -> None:
    def absent(x: Tensor) -> Tensor:
        raise ImportError("No module named 'absent'")

    outcome = surveyed(spec_with(absent=absent, wrong=lambda x: 3 * x))
    assert outcome.wrong is None
    direction = outcome.directions["fwd"]
    assert set(direction.device_ms) == {"tilesmith", "torch"}
    assert direction.errors["absent"] == "not installed: No module named 'absent'"
    assert direction.errors["wrong"].startswith("forward: element 0 is")


def test_pytorchs_wrong_gradient_is_named_and_not_believed() -> None:
    """As on a GPU, where PyTorch's gradient of avg_pool2d is wrong for images with channels last."""
    spec = SPECS["avg_pool2d"]

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Tensor:
            return gradients[0].flip(-1)

    pytorchs: Any = spec.rivals["torch"]
    applied: Any = Wrong.apply
    wrong = replace(spec, op=spec.reference, rivals={"torch": lambda *given: applied(pytorchs(*given))})
    drawn = {"batch": 1, "channels": 3, "side": 7, "channels_last": True, "dtype": "float32"}
    outcome = surveyed(wrong, drawn=drawn)
    assert outcome.wrong is None
    direction = outcome.directions["bwd"]
    assert "torch" not in direction.device_ms
    assert direction.errors["torch"].startswith("gradient x: element 0 is")


class IdleReplays(FakeStopwatch):
    """Replays take time, but compute nothing: interpreted kernels are slow."""

    def capture(self, calls: Sequence[Action]) -> Action:
        calls[0]()

        def replay() -> None:
            self._device_ms += 0.1 * len(calls)

        return replay


@contextmanager
def interpreted(**fields: Any) -> Iterator[None]:
    with use("interpret"):
        yield


def chose_torch(*arguments: Any) -> str:
    return "torch"


@pytest.mark.parametrize(
    ("operator", "drawn"),
    [
        ("rms_norm", {"rows": 3, "columns": 65, "dtype": "float16"}),
        ("matmul", {"m": 7, "n": 13, "k": 9, "layout": "TT", "dtype": "float32"}),
        (
            "attention",
            {"batch": 1, "heads": 4, "key_heads": 2, "queries": 5, "keys": 5, "head_size": 16, "causal": True,
             "dtype": "float16"},
        ),
    ],
)  # fmt: skip
def test_our_kernels_are_checked_and_timed_in_the_interpreter(operator: str, drawn: Drawn) -> None:
    source = Source(partial(operator_spec, operator), configured=interpreted, taken=chose_torch)
    limits = replace(LIMITS, cache_bytes=0)  # one set of inputs
    outcome = Surveyor(IdleReplays(), limits, device="cpu").row(DrawnCase(operator, source, 0, drawn, ("torch",)))
    assert outcome.wrong is None
    assert set(outcome.directions) == {"fwd", "bwd"}
    for direction in outcome.directions.values():
        assert set(direction.device_ms) == {"tilesmith", "auto", "torch"}
        assert direction.auto == "torch"


def test_wrong_head_of_another_batch_is_found() -> None:
    """Attention is compared in full precision on its last heads only; the others must be near PyTorch's."""
    spec = SPECS["attention"]

    def first_batch_wrong(**inputs: Any) -> Tensor:
        made: Tensor = spec.rivals["torch"](**inputs).clone()
        made[0] *= 1.1
        return made

    drawn = {"batch": 2, "heads": 2, "key_heads": 1, "queries": 8, "keys": 8, "head_size": 16, "causal": False,
             "dtype": "float16"}  # fmt: skip
    wrong = replace(spec, op=lambda **inputs: first_batch_wrong(**inputs), rivals={"torch": spec.rivals["torch"]})
    outcome = surveyed(wrong, drawn=drawn)
    assert outcome.wrong is not None
    assert "the whole differs from PyTorch's" in outcome.wrong


def test_default_rivals_start_quickly() -> None:
    assert chosen_rivals(SPECS["softmax"], None) == ("torch", "liger")
    assert chosen_rivals(SPECS["softmax"], ["all"]) == ("torch", "compile", "liger", "quack")
    assert chosen_rivals(SPECS["softmax"], ["torch", "quack", "flex"]) == ("torch", "quack")
    assert chosen_rivals(SPECS["softmax"], ["none"]) == ()


def test_small_cases_rotate_over_more_than_the_cache() -> None:
    assert sets_wanted(900, cache_bytes=100).sets == 1
    assert sets_wanted(50, cache_bytes=100) == Rotation(5)
    assert sets_wanted(1, cache_bytes=1000) == Rotation(32, clears=True)


def test_providers_are_timed_in_turn() -> None:
    order: list[str] = []
    watch = FakeStopwatch(call_ms=0.3)

    def calls(name: str) -> list[Callable[[], tuple[Tensor, ...]]]:
        def call() -> tuple[Tensor, ...]:
            order.append(name)
            return ()

        return [call, call]

    runners = {name: prepared(watch, calls(name), Rotation(2), keep=False) for name in "ab"}
    order.clear()
    assert {name: time.device_ms for name, time in timed(watch, runners).items()} == pytest.approx({"a": 0.3, "b": 0.3})
    rounds = "".join(order).rstrip("b").count("ba")
    assert rounds >= 4, "a and b alternate"


def test_calls_that_refuse_capture_are_timed_by_events() -> None:
    watch = FakeStopwatch(call_ms=0.2, captures=False)

    def call() -> tuple[Tensor, ...]:
        watch.spend()
        return ()

    found = timed(watch, {"one": prepared(watch, [call], Rotation(1), keep=True)})["one"]
    assert found.device_ms == pytest.approx(0.2)
    assert found.method.startswith("events (no graph: it waits for the device)")
    assert watch.clears > 0


class Crashing:
    """A worker that dies on the second case."""

    def row(self, unit: DrawnCase) -> Outcome:
        if unit.number == 1:
            import os

            os._exit(3)
        return unit.row(unit.op, unit.source)

    def healthy(self) -> bool:
        return True


def start_crashing(source: Source) -> tuple[Crashing, dict[str, Any]]:
    return Crashing(), {"device": "none"}


@FORKED
def test_crash_loses_one_case() -> None:
    source = Source(partial(operator_spec, "silu"))
    cases = tuple(DrawnCase("silu", source, number, SMALL, ()) for number in range(3))
    events: list[Event] = list(run_job(Job("survey", source, cases, start_crashing)))
    outcomes = [event for event in events if isinstance(event, Outcome)]
    assert [one.wrong for one in outcomes] == [None, "its process ended with status 3", None]
    assert sum(isinstance(event, Started) for event in events) == 3
    assert any(isinstance(event, About) for event in events)


def touch(case: DrawnCase, large: Any) -> None:
    Path(case.op, str(case.number)).touch()
    if case.number == 1:
        raise RuntimeError("is ignored")


@FORKED
def test_every_case_is_compiled_once(tmp_path: Path) -> None:
    source = Source(partial(operator_spec, "silu"))
    cases = [DrawnCase(str(tmp_path), source, number, SMALL, ()) for number in range(5)]
    done: list[int] = []
    assert compile_ahead(cases, 2, run=touch, report=done.append) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == list("01234")
    assert done[-1] == 5


def test_survey_is_written_while_it_grows_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    outcome = surveyed(spec_with())
    about = {"device": "Some GPU", "limits": {"copy_tb_per_s": 4.0}}
    survey = content([outcome], seed=7, drawn=2, about=about, partial=True)
    journal = Journal(path)
    journal.write(survey)
    assert read(path) == json.loads(json.dumps(survey))
    journal.write({**survey, "seed": 8})
    assert read(path)["seed"] == 7, "not more often than every two seconds"
    journal.write({**survey, "seed": 8}, last=True)
    stored = read(path)
    assert (stored["seed"], stored["schema"], stored["kind"], stored["partial"]) == (8, 1, "survey", True)
    assert stored["cases"][0]["directions"]["fwd"]["device_ms"]["torch"] == pytest.approx(0.1)
    path.write_text(json.dumps({**survey, "schema": 99}))
    with pytest.raises(SurveyError, match="is not a survey of this version"):
        read(path)
