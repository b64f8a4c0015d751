"""Inspection on a GPU: results stay correct, and a measured time is reported."""

from __future__ import annotations

import planted
import pytest
import torch
from reading import kinds

from tilesmith.lab.inspect import inspect

pytestmark = pytest.mark.gpu


def test_kernel_has_measured_and_predicted_time() -> None:
    x, y = torch.randn(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
    found = inspect(lambda: planted.copy[(1 << 12,)](x, y, x.numel(), BLOCK=1024), seconds=1.0)
    (kernel,) = found.kernels
    assert found.has_gpu
    assert torch.equal(x, y), "the launch really ran on the GPU"
    assert kernel.measured_us is not None
    assert 0 < kernel.measured_us < 1e4
    assert kernel.measured_note is not None
    assert "µs measured" in kernel.measured_note
    assert {one.efficiency for one in kernel.accesses} == {1.0}


def test_tracing_keeps_gpu_tensors_unchanged() -> None:
    y = torch.zeros(1024, device="cuda")
    found = inspect(lambda: planted.overlapping_atomics[(2,)](y, BLOCK=256))
    assert y.sum().item() == 512, "neither the trace nor the timing may add anything"
    assert "race" not in kinds(found)


def test_out_of_bounds_accesses_are_reported_and_skipped() -> None:
    x, y = torch.randn(1000, device="cuda"), torch.empty(1000, device="cuda")
    found = inspect(lambda: planted.shift_in_place[(4,)](x, 1000, BLOCK=256))
    assert "race" in kinds(found)
    empty = torch.empty(1000, device="cuda")
    assert "uninitialised" in kinds(inspect(lambda: planted.copy[(4,)](torch.empty_like(empty), y, 1000, BLOCK=256)))
