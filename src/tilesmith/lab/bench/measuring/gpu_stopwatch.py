"""Time calls on a GPU with CUDA graphs and events; report the GPU and the software versions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import triton

from tilesmith.lab.bench.measuring.timing import CACHES_FILLED, Action, CaptureRefused
from tilesmith.toolchain.machine import examine


class GpuStopwatch:
    """Times calls on the current device. Creating it moves this process to a new stream.

    A backward runs on its forward's stream, and the default stream cannot be captured: so all calls share this one.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch has no types here
        torch.cuda.set_stream(self._stream)
        self.cache_bytes: int = torch.cuda.get_device_properties().L2_cache_size
        self._cleared_by: torch.Tensor | None = None

    def capture(self, calls: Sequence[Action]) -> Action:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        try:
            # Backward passes run in PyTorch's own threads, which the other capture modes refuse.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                for call in calls:
                    call()
        except Exception as error:
            with suppress(Exception):
                torch.cuda.synchronize()
            generator.graphsafe_set_state(before)  # a failed capture may leave the generator unusable
            raise CaptureRefused(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        torch.cuda.synchronize()

        def replay(kept: Sequence[Action] = calls) -> None:  # the graph reads memory that the calls own
            graph.replay()

        return replay

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
        # A read, not a write: dirty cache lines would be written back during the timed run.
        self._cleared_by.view(torch.int32).amax()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def seconds(self) -> float:
        return time.perf_counter()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch has no types here


def about() -> dict[str, Any]:
    """Return device, driver and versions, which every stored result carries."""
    machine = examine()
    return {
        "device": machine.gpu.name if machine.gpu else None,
        "driver": machine.gpu.driver if machine.gpu else None,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def gpu_works() -> bool:
    """Return whether the GPU still works: after an illegal access every CUDA call fails."""
    try:
        torch.randn(1, device="cuda").item()
    except RuntimeError:
        return False
    return True
