"""Measuring units with a fake stopwatch on CPU tensors: which rows get a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch import Tensor

from tilesmith.hardware.devices import device
from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.device_limits import datasheet_limits
from tilesmith.lab.bench.running.bench_units import Source, Unit
from tilesmith.lab.bench.running.measurer import Measurer
from tilesmith.lab.bench.running.predictor import Predictor
from tilesmith.spec import Case, Cost, Spec, Work

CASE = Case("small", rows=8, cols=16)
LIMITS = replace(datasheet_limits(device("h200")), cache_bytes=1024, launch_us=2.0)


def double(x: Tensor) -> Tensor:
    return 2 * x


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    return {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    moved = Work(2 * case.rows * case.cols * dtype.itemsize, case.rows * case.cols)
    return Cost(moved, moved)


def spec_with(op: Callable[..., Any] = double, **rivals: Callable[..., Any]) -> Spec:
    return Spec(name="double", op=op, reference=double, cases=[CASE], make_inputs=make_inputs, cost=cost, rivals=rivals)


def measured(spec: Spec, provider: str = "tilesmith", mode: str = "fwd", warm: bool = False, **config: Any) -> Row:
    measurer = Measurer(Source(lambda: spec), FakeStopwatch(call_ms=0.1), LIMITS, warm=warm, device="cpu")
    return measurer.row(Unit(CASE, torch.float32, mode, provider, config))


@pytest.mark.parametrize("mode", ["fwd", "bwd", "both"])
@pytest.mark.parametrize("provider", ["tilesmith", "torch"])
def test_correct_operator_gets_a_time(provider: str, mode: str) -> None:
    row = measured(spec_with(), provider, mode)
    assert row.error is None
    assert row.checked
    assert row.device_ms == pytest.approx(0.1)
    assert row.bytes == (2 if mode == "both" else 1) * 2 * 8 * 16 * 4
    assert row.verdict is not None


@pytest.mark.parametrize("mode", ["fwd", "bwd", "both"])
def test_operator_with_none_among_its_results_gets_a_time(mode: str) -> None:
    def both(x: Tensor) -> tuple[Tensor, None]:
        return double(x), None

    assert measured(replace(spec_with(both), reference=both), mode=mode).device_ms
    assert measured(replace(spec_with(lambda x: (both(x)[0] + 1, None)), reference=both), mode=mode).device_ms is None


def test_a_mode_without_work_gets_no_time() -> None:
    spec = replace(spec_with(), cost=lambda case, dtype: Cost(Work(1, 1), Work(0, 0)))
    row = measured(spec, mode="bwd")
    assert row.device_ms is None
    assert row.error == "nothing to time: no bytes and no flops"
    assert measured(spec, mode="fwd").device_ms is not None


def test_wrong_operator_gets_no_time_and_a_reason() -> None:
    row = measured(spec_with(lambda x: torch.cat([2 * x[:-1], x[-1:]])))
    assert row.device_ms is None
    assert row.checked is False
    assert row.error is not None
    assert "refused, because the result is wrong: forward" in row.error
    assert row.verdict is None


def test_wrong_gradient_also_refuses_the_forward() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    row = measured(spec_with(Halved.apply))
    assert row.device_ms is None
    assert "gradient x" in (row.error or "")


def keeps_first_output() -> Callable[..., Any]:
    """Correct during the check; returns a cached output afterwards."""
    kept: list[Tensor] = []

    def op(x: Tensor) -> Tensor:
        if not kept or x.requires_grad:  # the check needs gradients, timing the forward does not
            kept[:] = [2 * x.detach()]
            return 2 * x
        return kept[0]

    return op


def keeps_output_by_address() -> Callable[..., Any]:
    kept: dict[int, Tensor] = {}

    def op(x: Tensor) -> Tensor:
        if x.requires_grad:
            return 2 * x
        return kept.setdefault(x.data_ptr(), 2 * x)

    return op


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("caching", [keeps_first_output, keeps_output_by_address])
def test_cached_output_is_detected(caching: Callable[[], Callable[..., Any]], warm: bool) -> None:
    row = measured(spec_with(caching()), warm=warm)
    assert row.device_ms is None
    assert "the timed calls return a wrong result" in (row.error or "")


def test_cached_gradient_is_detected() -> None:
    kept: list[Tensor] = []

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Tensor:
            kept.append(2 * gradients[0])
            return kept[-1] if len(kept) < 4 else kept[3]

    row = measured(spec_with(Keeping.apply), mode="bwd")
    assert row.device_ms is None
    assert "the timed calls return a wrong result" in (row.error or "")


def test_wrong_rival_gets_no_time() -> None:
    row = measured(spec_with(quick=lambda x: 2 * x.bfloat16().float()), "quick")
    assert row.device_ms is None
    assert row.checked is False


def test_missing_rival_is_reported() -> None:
    def absent(x: Tensor) -> Tensor:
        raise ModuleNotFoundError("No module named 'absent'")

    assert measured(spec_with(absent=absent), "absent").error == "not installed: No module named 'absent'"


def test_a_rival_that_fails_is_reported_with_its_error() -> None:
    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("only multiples of 128")

    assert measured(spec_with(failing=failing), "failing").error == "RuntimeError: only multiples of 128"


def test_a_rival_that_overwrites_its_input_is_timed_and_noted() -> None:
    def in_place(x: Tensor) -> Tensor:
        return x.mul_(2).clone()

    row = measured(spec_with(in_place=in_place), "in_place")
    assert row.error is None
    assert row.notes[0] == "overwrites its input x: only the first call was checked"


def test_wrong_rival_that_overwrites_its_input_gets_no_time() -> None:
    def in_place(x: Tensor) -> Tensor:
        return x.mul_(3).clone()

    assert measured(spec_with(in_place=in_place), "in_place").device_ms is None


def test_backward_without_gradient_is_an_error() -> None:
    row = measured(replace(spec_with(), differentiable=False), mode="bwd")
    assert row.error == "no gradient: the operator is not differentiable"


def test_swept_fields_of_a_users_operator_are_its_arguments() -> None:
    seen: list[int] = []

    def op(x: Tensor, block_size: int = 1) -> Tensor:
        seen.append(block_size)
        return 2 * x

    assert measured(spec_with(op), block_size=64).error is None
    assert set(seen) == {64}


def test_a_prediction_has_a_floor_and_no_time() -> None:
    predictor = Predictor(Source(lambda: spec_with()), LIMITS, "cuda:90")
    row = predictor.row(Unit(CASE, torch.float32, "fwd", "tilesmith"))
    assert (row.kind, row.device_ms, row.checked) == ("predicted", None, True)
    assert row.floor_ms == pytest.approx(1024 / 4.8e9)


def test_a_prediction_for_a_wrong_operator_is_refused() -> None:
    predictor = Predictor(Source(lambda: spec_with(lambda x: x)), LIMITS, "cuda:90")
    row = predictor.row(Unit(CASE, torch.float32, "fwd", "tilesmith"))
    assert row.checked is False
    assert row.floor_ms is None


@pytest.mark.parametrize("factor", [2, 3])
def test_a_swept_point_is_checked_on_small_cases_where_its_own_is_too_large(factor: int) -> None:
    large = Case("large", rows=4096, cols=4096)
    spec = replace(spec_with(lambda x, factor: factor * x), cases=[CASE, large])
    row = Predictor(Source(lambda: spec), LIMITS, "cuda:90").row(
        Unit(large, torch.float32, "fwd", "tilesmith", {"factor": factor})
    )
    if factor == 2:
        assert (row.error, row.checked) == (None, None)
        assert row.notes == ["too large for the interpreter: the sweep's points were checked on small"]
    else:
        assert row.checked is False
        assert str(row.error).startswith("refused, because the result is wrong: on small: ")
