"""Measured limits are stored unless they are implausible for the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch.overrides import TorchFunctionMode

from tilesmith.hardware.devices import device
from tilesmith.lab.bench.roofline import device_limits as limits
from tilesmith.lab.bench.roofline.device_limits import Limits, datasheet_limits, gpu_limits, is_disturbed

ABOUT = {"device": "NVIDIA H200", "driver": "580", "torch": "2.11"}
# An H200 alone: benchmarks/results/attention-h200.json.
ALONE = Limits(4.28, 4.40, {"bf16": 687.0, "fp16": 660.0, "fp32": 51.5, "tf32": 349.0, "fp8": 1192.0}, 0.8, 7.8, 1, "m")
# The same with fifteen other programs on it: benchmarks/results/rms_norm_and_silu-h200.json.
CROWDED = replace(ALONE, copy_tb_per_s=4.24, read_tb_per_s=0.907, matmul_tflop_per_s={"bf16": 156.0, "fp16": 125.0})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Limits]:
    """Return the list of limits that successive measurements give."""
    results: list[Limits] = []
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(limits, "_measured", lambda *_: results.pop(0))
    return results


def read(anew: bool = False) -> Limits:
    stopwatch: Any = None
    return gpu_limits(stopwatch, ABOUT, 1, anew=anew)


def test_limits_are_measured_once(measured: list[Limits]) -> None:
    measured.extend([ALONE, replace(ALONE, copy_tb_per_s=4.0)])
    assert read() == read() == ALONE
    assert read(anew=True).copy_tb_per_s == 4.0


def test_disturbed_limits_are_marked_and_not_stored(measured: list[Limits]) -> None:
    measured.extend([CROWDED, ALONE])
    first = read()
    assert first.copy_tb_per_s == CROWDED.copy_tb_per_s
    assert "another process used the GPU" in first.source
    assert read() == read() == ALONE


@pytest.mark.parametrize(
    "change",
    [
        {"read_tb_per_s": 2.9},
        {"copy_tb_per_s": 2.3, "read_tb_per_s": 2.3},
        {"matmul_tflop_per_s": {"bf16": 390.0}},
        {"matmul_tflop_per_s": {"fp16": 390.0}},
    ],
)
def test_limits_far_below_the_datasheet_are_disturbed(change: dict[str, Any]) -> None:
    h200 = device("h200")
    assert not is_disturbed(ALONE, h200)
    assert not is_disturbed(datasheet_limits(h200), h200)
    assert is_disturbed(replace(ALONE, **change), h200)


def test_consistent_limits_of_an_unknown_device_are_accepted() -> None:
    slow = replace(ALONE, copy_tb_per_s=0.3, read_tb_per_s=0.3, matmul_tflop_per_s={"bf16": 20.0})
    assert not is_disturbed(slow, None)
    assert is_disturbed(replace(slow, read_tb_per_s=0.1), None)


class OnTheCpu(TorchFunctionMode):
    """Moves GPU tensors to the CPU, gives calls a time on the stopwatch, and records the fp32 precision of GEMMs."""

    def __init__(self, stopwatch: FakeStopwatch) -> None:
        super().__init__()
        self.stopwatch = stopwatch
        self.precisions: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.Tensor.matmul, torch.Tensor.__matmul__) and args[0].dtype == torch.float32:
            self.precisions.add(torch.backends.cuda.matmul.fp32_precision)
        self.stopwatch.spend()
        kwargs = {name: value for name, value in (kwargs or {}).items() if (name, value) != ("device", "cuda")}
        return function(*args, **kwargs)


@pytest.fixture
def switch() -> Iterator[Any]:
    """Set PyTorch's newer fp32 precision switch, after which the older one cannot be read."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    yield switch
    switch.fp32_precision = before


@pytest.mark.parametrize("precision", ["none", "ieee", "tf32"])
def test_fp32_and_tf32_rates_ignore_the_current_switch(
    precision: str, switch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(limits, "MATRIX_SIZES", (16,))
    monkeypatch.setattr(limits, "COPIED_BYTES", 1 << 10)
    switch.fp32_precision = precision
    with OnTheCpu(FakeStopwatch(call_ms=20.0)) as on_the_cpu:  # few calls make a sample
        found = gpu_limits(on_the_cpu.stopwatch, ABOUT, 1, anew=True)
    assert {"fp32", "tf32"} <= set(found.matmul_tflop_per_s)
    assert on_the_cpu.precisions == {"ieee", "tf32"}
    assert switch.fp32_precision == precision
