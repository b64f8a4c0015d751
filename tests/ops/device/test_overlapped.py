"""Launches that start before the launch ahead of them has ended: only where the GPU can, and only in such pairs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import tilesmith as ts
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel


def launches_of(rows: int, columns: int, gpu: str) -> list[list[PlannedLaunch]]:
    """Return the launches of a loss and of a softmax, forward and backward."""
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with recorded_plans(gpu) as plans:
        ts.ops.cross_entropy(x, torch.empty(rows, dtype=torch.int64, device="meta"))
        torch.autograd.grad(ts.ops.softmax(x), x, torch.empty_like(x))
    return [plan.launches for plan in plans]


@pytest.mark.parametrize(("rows", "columns"), [(100, 128256), (1000, 50257), (9000, 513), (70000, 20)])
@pytest.mark.parametrize(("gpu", "can"), [("cuda:90", True), ("cuda:89", False), ("hip:gfx942", False)])
def test_launch_that_overlaps_follows_one_that_lets_it(rows: int, columns: int, gpu: str, can: bool) -> None:
    pairs = 0
    for launches in launches_of(rows, columns, gpu):
        assert not launches[0].arguments.get("OVERLAPS")
        for first, second in pairwise(launches):
            overlaps = bool(second.arguments.get("OVERLAPS"))
            assert overlaps == bool(first.arguments.get("NEXT_OVERLAPS"))
            assert second.options().get("launch_pdl", False) == overlaps
            pairs += overlaps
    assert (pairs > 0) == can


def test_kernel_that_overlaps_waits() -> None:
    for launches in launches_of(1000, 50257, "cuda:90"):
        for launch in launches:
            binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
            waits = "griddepcontrol.wait" in binary.assembly["ptx"]
            lets = "griddepcontrol.launch_dependents" in binary.assembly["ptx"]
            assert waits == bool(launch.arguments.get("OVERLAPS"))
            assert lets == bool(launch.arguments.get("NEXT_OVERLAPS"))
