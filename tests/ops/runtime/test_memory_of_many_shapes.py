"""Nothing grows without end over 10,000 calls whose shapes never repeat: plans, caches, autograd graphs."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.runtime.kernels import MOST_PLANS

CALLS = 10_000
SAMPLE_EVERY = 500
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": ts.ops.silu,
    "rms_norm": ts.ops.rms_norm,
    "softmax": lambda x: ts.ops.softmax(x, 0),
    "linear_cross_entropy": lambda x: ts.ops.linear_cross_entropy(
        x.view(-1, 1), torch.ones(2, 1), torch.zeros(x.numel(), dtype=torch.long)
    ),
}


def _sampled(call: Callable[[Tensor], Tensor], calls: int) -> list[tuple[int, int]]:
    """Return bytes and objects that Python holds after every few hundred calls, each with a size of its own."""
    held = []
    tracemalloc.start()
    try:
        for number in range(1, calls + 1):
            call(torch.ones(1, number, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
            if number % SAMPLE_EVERY == 0:
                gc.collect()
                held.append((tracemalloc.get_traced_memory()[0], len(gc.get_objects())))
    finally:
        tracemalloc.stop()
    return held


@pytest.mark.slow
@pytest.mark.parametrize("route", ["interpret", "torch"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_memory_stays_bounded(operator: str, route: Any) -> None:
    """Caches fill up to their limit, which is below half of the calls, and memory stays there."""
    with ts.use(route):
        held = _sampled(OPERATORS[operator], CALLS)
    filled = 1 + MOST_PLANS // SAMPLE_EVERY
    assert filled < len(held) / 2
    for what, samples in zip(("bytes", "objects"), zip(*held, strict=True), strict=True):
        limit = 1.05 * max(samples[: filled + 1])
        assert max(samples[filled + 1 :]) <= limit, f"{what}: {samples}"
