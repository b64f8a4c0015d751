"""Measure both sides once, at the first sight of a call: `use("auto", measure=True)`.

The call runs on copies of its own arguments by both sides, which takes some milliseconds. The result is stored in the
device's table of tuned entries, so that later processes do not measure again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.auto.sides import OURS, TORCH, Direction, signature

Call = Callable[..., Any]
Timer = Callable[[Callable[[], object]], float]
"""Returns the milliseconds that a call takes on the device."""

ROUNDS = 5
MOST_CALLS = 20
LONGEST_SECONDS = 0.01  # of queueing the calls between two events
CYCLES_PER_SECOND = 2e9  # of the clock of a GPU; only its order of magnitude matters


def measure_once(
    operator: str, call: Call, arguments: Sequence[Any], direction: Direction, timer: Timer | None = None
) -> None:
    """Measure and store who is faster, unless that is stored, or a CUDA graph is being captured.

    `call` takes all arguments of the operator in order.
    """
    device = next(value.device for value in arguments if isinstance(value, Tensor))
    key = signature(arguments, direction)
    if tuning.measured(device, operator, key, direction) is not None or tuning.is_capturing():
        return
    times: dict[str, list[float]] = {OURS: [], TORCH: []}
    modes: dict[str, dispatch.Mode] = {OURS: "triton", TORCH: "torch"}
    try:
        for side in list(modes) * ROUNDS:
            with dispatch.use(modes[side]):
                times[side].append((timer or gpu_milliseconds)(_action(call, arguments, direction)))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return  # the call follows the model
    ours, torchs = (median(times[side]) for side in (OURS, TORCH))
    tuning.keep_measured(device, operator, key, direction, TORCH if torchs < ours else OURS)


def _action(call: Call, arguments: Sequence[Any], direction: Direction) -> Callable[[], object]:
    """Return one run of this direction, on tensors that share the arguments' memory but not their autograd graph."""
    leaves = [
        value.detach().requires_grad_(direction == "backward" and value.requires_grad)
        if isinstance(value, Tensor)
        else value
        for value in arguments
    ]
    if direction == "forward":

        def forward() -> object:
            with torch.no_grad():
                return call(*leaves)

        return forward
    with torch.enable_grad():
        made = call(*leaves)
    outputs = [one for one in ([made] if isinstance(made, Tensor) else made) if one.requires_grad]
    wanted = [value for value in leaves if isinstance(value, Tensor) and value.requires_grad]
    cotangents = [torch.ones_like(one) for one in outputs]  # random ones would move the user's generator
    return lambda: torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)


def gpu_milliseconds(action: Callable[[], object]) -> float:
    """Return the device time of a call, after two calls that compile and warm up."""
    action()
    torch.cuda.synchronize()
    started = time.perf_counter()
    action()
    host_seconds = time.perf_counter() - started
    torch.cuda.synchronize()
    calls = max(1, min(MOST_CALLS, int(LONGEST_SECONDS / max(host_seconds, 1e-6))))
    # The GPU sleeps while the host queues all calls, so the events do not count the host's time.
    torch.cuda._sleep(int(2 * calls * host_seconds * CYCLES_PER_SECOND))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls
