"""The lines about measured times. The lab measures, and its tests cover that."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.running.bench_units import Unit
from tilesmith.lab.bench.running.measurer import Measurer
from tilesmith.spec import Case
from tilesmith.workshop.checking import gpu_timing
from tilesmith.workshop.checking.gpu_timing import time_beside_torch, time_beside_twin
from tilesmith.workshop.checking.triton_check import model_spec
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise import Size
from tilesmith.workshop.course.exercise_file import load_exercise

CASE = Case("timed", elements=1 << 24)


class Measured:
    """A measurer that returns given rows without a GPU."""

    def __init__(self, **ours: Any) -> None:
        self._ours = ours

    def row(self, unit: Unit) -> Row:
        known: dict[str, Any] = {
            "device_ms": 0.05,
            "host_us": 12.0,
            "percent_of_limit": 80.0,
            "verdict": "memory-bound",
        }
        known |= self._ours if unit.provider == OURS else {}
        return Row("vector-add", "timed", {}, "float32", "fwd", unit.provider, **known)


def lines(**ours: Any) -> Any:
    return time_beside_torch(cast(Measurer, Measured(**ours)), CASE, torch.float32, "NVIDIA H200")


def test_time_is_shown_beside_pytorch() -> None:
    assert lines(device_ms=0.1, percent_of_limit=40.0).lines == (
        "measured on NVIDIA H200, elements = 16,777,216:",
        "your kernel: 0.1000 ms on the device, 40 % of the limit, 12 µs on the host",
        "memory-bound",
        "PyTorch: 0.0500 ms on the device, 80 % of the limit, 12 µs on the host",
    )


def test_wrong_kernel_gets_no_time() -> None:
    speed = lines(device_ms=None, error="refused, because it is wrong: element [3]")
    assert speed.lines == ()
    assert speed.error == "refused, because it is wrong: element [3]"


def test_unknown_share_of_the_limit_is_left_out() -> None:
    assert "your kernel: 0.0500 ms on the device, 12 µs on the host" in lines(percent_of_limit=None).lines


def lines_beside_twin(monkeypatch: pytest.MonkeyPatch, **tritons: Any) -> list[str]:
    measured = (Measured(**tritons), {"device": "NVIDIA H200"})
    monkeypatch.setattr(gpu_timing, "start_measuring", lambda source, **options: measured)
    return time_beside_twin(0.16, model_spec(load_exercise(BUILT_IN / "silu")), Size("timed 1", {"elements": 1 << 24}))


def test_cuda_program_and_its_twin_have_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_beside_twin(monkeypatch, floor_ms=0.04) == [
        "measured on NVIDIA H200, elements = 16,777,216:",
        "your kernel: 0.1600 ms on the device, 25 % of the limit",
        "its twin in Triton, silu: 0.0500 ms on the device, 80 % of the limit, 12 µs on the host",
        "PyTorch: 0.0500 ms on the device, 80 % of the limit, 12 µs on the host",
    ]


def test_failing_twin_does_not_fail_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines_beside_twin(monkeypatch, device_ms=None, percent_of_limit=None, verdict=None, error="no memory")
    assert found[1:3] == ["your kernel: 0.1600 ms on the device", "its twin in Triton, silu: not measured (no memory)"]
