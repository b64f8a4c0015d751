"""Stopwatch and limits on a GPU."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tilesmith.cli.operator_source import source_of
from tilesmith.hardware.devices import device
from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch
from tilesmith.lab.bench.measuring.timing import CaptureRefused, Outputs, Rotation, measure
from tilesmith.lab.bench.roofline.device_limits import COPIED_BYTES, datasheet_limits, gpu_limits
from tilesmith.lab.bench.running.bench_units import Source, Unit
from tilesmith.lab.bench.running.measurer import Measurer
from tilesmith.lab.bench.survey.drawing import Drawn
from tilesmith.lab.bench.survey.surveyor import DrawnCase, Surveyor
from tilesmith.ops import SPECS
from tilesmith.spec import load_file

pytestmark = pytest.mark.gpu
ABOUT = {"device": "test", "driver": "test", "torch": torch.__version__}


def copying(source: torch.Tensor) -> Outputs:
    return (source.clone(),)


@pytest.mark.alone
def test_the_same_work_timed_twice_agrees_within_the_stated_noise() -> None:
    stopwatch = GpuStopwatch()
    calls = [partial(copying, torch.randn(1 << 26, device="cuda")) for _ in range(2)]
    first, second = (measure(stopwatch, calls, Rotation(2)).timing for _ in range(2))
    assert abs(first.device_ms - second.device_ms) <= (first.noise + second.noise) * first.device_ms
    assert first.method.startswith("graph")


def test_call_that_synchronizes_is_timed_without_a_graph() -> None:
    stopwatch = GpuStopwatch()
    x = torch.randn(1 << 20, device="cuda")

    def waiting() -> Outputs:
        return (x * float(x.sum().item()),)

    with pytest.raises(CaptureRefused):
        stopwatch.capture([waiting])
    timing = measure(stopwatch, [waiting, waiting], Rotation(2)).timing
    assert timing.method.startswith("events")
    assert timing.device_ms > 0
    assert torch.randn(1, device="cuda").isfinite().all(), "random numbers still work"


@pytest.mark.alone
def test_captured_calls_keep_the_memory_that_their_graph_reads() -> None:
    call = partial(copying, torch.randn(8, device="cuda"))
    owner = weakref.ref(call)
    replay = GpuStopwatch().capture([call])
    del call
    assert owner() is not None
    replay()


def test_limits_are_plausible_and_stored() -> None:
    stopwatch = GpuStopwatch()
    limits = gpu_limits(stopwatch, ABOUT, stopwatch.cache_bytes, anew=True)
    assert 10 * stopwatch.cache_bytes < COPIED_BYTES, "the copy comes from memory"
    assert "something else used the GPU" not in limits.source
    assert 0.7 < limits.read_tb_per_s / limits.copy_tb_per_s < 1.3
    assert limits.matmul_tflop_per_s["bf16"] > limits.matmul_tflop_per_s["fp32"]
    assert limits.launch_us is not None
    assert 0.3 < limits.launch_us < 20
    assert gpu_limits(stopwatch, ABOUT, stopwatch.cache_bytes, anew=False) == limits


@pytest.mark.alone
@pytest.mark.parametrize("mode", ["fwd", "bwd", "both"])
@pytest.mark.parametrize("name", ["silu", "rms_norm"])
def test_an_operator_is_measured_beside_pytorch(name: str, mode: str) -> None:
    spec, stopwatch = SPECS[name], GpuStopwatch()
    limits = gpu_limits(stopwatch, ABOUT, stopwatch.cache_bytes, anew=False)
    measurer = Measurer(Source(lambda: spec), stopwatch, limits, warm=False)
    case = spec.case("large")
    rows = [measurer.row(Unit(case, torch.bfloat16, mode, provider)) for provider in ("tilesmith", "torch")]
    for row in rows:
        assert row.error is None
        assert row.checked
        assert row.percent_of_limit is not None
        assert 10 < row.percent_of_limit < 103
        assert row.peak_bytes
    assert rows[0].launches
    assert (rows[0].kept_bytes is None) == (mode == "fwd")


def test_float8_is_measured_and_judged_too() -> None:
    spec, stopwatch = load_file(Path(__file__).parents[3] / "benchmarks" / "float8_matmul.py"), GpuStopwatch()
    limits = gpu_limits(stopwatch, ABOUT, stopwatch.cache_bytes, anew=False)
    measurer = Measurer(Source(lambda: spec), stopwatch, limits, warm=False)
    row = measurer.row(Unit(spec.case("tiny"), torch.float8_e4m3fn, "fwd", "tilesmith"))
    assert row.error is None
    assert row.checked


@pytest.mark.alone
@pytest.mark.parametrize(
    ("operator", "drawn"),
    [
        ("softmax", {"rows": 999, "columns": 4097, "dtype": "bfloat16"}),
        ("matmul", {"m": 777, "n": 1023, "k": 129, "layout": "TT", "dtype": "float32"}),
        ("attention", {"batch": 2, "heads": 8, "key_heads": 2, "queries": 300, "keys": 300, "head_size": 64,
                       "causal": True, "dtype": "bfloat16"}),
    ],
)  # fmt: skip
def test_drawn_case_is_surveyed(operator: str, drawn: Drawn) -> None:
    stopwatch = GpuStopwatch()
    limits = replace(datasheet_limits(device("h200")), cache_bytes=stopwatch.cache_bytes)
    source = source_of(SPECS[operator], operator)
    outcome = Surveyor(stopwatch, limits).row(DrawnCase(operator, source, 0, drawn, ("torch",)))
    assert outcome.wrong is None
    for direction in outcome.directions.values():
        assert set(direction.device_ms) == {"tilesmith", "auto", "torch"}, direction.errors
        assert all(0.0005 < ms < 10 for ms in direction.device_ms.values())
        chosen = direction.device_ms[direction.auto or ""]
        assert direction.device_ms["auto"] == pytest.approx(chosen, rel=0.3)
