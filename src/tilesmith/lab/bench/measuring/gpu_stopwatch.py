"""The stopwatch of a real GPU, and what that GPU and its software are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import triton

from tilesmith.hardware.machine import examine
from tilesmith.lab.bench.measuring.timing import CACHES_FILLED, Action, CaptureRefused


class GpuStopwatch:
    """Times on the current device. From here on this process works on a stream of its own.

    A backward pass runs on the stream of its forward, and the default stream cannot be captured: so all share this one.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        torch.cuda.set_stream(self._stream)
        self.cache_bytes: int = torch.cuda.get_device_properties().L2_cache_size
        self._cleared_by: torch.Tensor | None = None

    def capture(self, calls: Sequence[Action]) -> Action:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        try:
            # Backward passes run in threads of PyTorch's own, which the other modes would refuse.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                for call in calls:
                    call()
        except Exception as error:
            with suppress(Exception):
                torch.cuda.synchronize()
            generator.graphsafe_set_state(before)  # a capture that breaks off may leave the generator unusable
            raise CaptureRefused(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        torch.cuda.synchronize()
        return graph.replay

    def milliseconds(self, action: Action, repetitions: int, before: Action) -> list[float]:
        pairs = [(_event(), _event()) for _ in range(repetitions)]
        for start, end in pairs:
            before()
            start.record()
            action()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def clear_cache(self) -> None:
        if self._cleared_by is None:
            self._cleared_by = torch.zeros(CACHES_FILLED * self.cache_bytes, dtype=torch.int8, device="cuda")
        # Read, not written: what a write leaves in the cache would go to memory during the timed run.
        self._cleared_by.view(torch.int32).amax()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def seconds(self) -> float:
        return time.perf_counter()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch leaves it so


def about() -> dict[str, Any]:
    """Device, driver and versions, as every stored result carries them."""
    machine = examine()
    return {
        "device": machine.gpu.name if machine.gpu else None,
        "driver": machine.gpu.driver if machine.gpu else None,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
