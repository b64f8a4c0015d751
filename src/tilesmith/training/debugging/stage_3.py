"""Stage 3: the clock stops when the work is queued, not when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tilesmith.training.debugging.case import Fact, Observation, Stage, main
from tilesmith.training.debugging.small_model import REPETITIONS, batch, has_gpu, model, wait

CPU_REMARK = [
    "On a CPU PyTorch returns when the work is done, so this fault does not occur. Here a thread stands in for the "
    "GPU's stream: it runs the forward pass while the program goes on."
]


class Stream:
    """Queues work and returns at once: the GPU's stream, or a thread on a machine without a GPU."""

    def __init__(self) -> None:
        self._thread = None if has_gpu() else ThreadPoolExecutor(1)
        self._last: Future[Any] | None = None

    def enqueue(self, work: Callable[[], Any]) -> None:
        if self._thread is None:
            work()
        else:
            self._last = self._thread.submit(work)

    def wait(self) -> None:
        wait()
        if self._last is not None:
            self._last.result()


def sequences() -> tuple[int, int]:
    """Return two batch sizes, one four times the other. On a GPU both take longer to run than to launch."""
    return (64, 256) if has_gpu() else (4, 16)


def forward_ms(size: int, *, waits: bool) -> float:
    """Return the time of a forward pass of `size` sequences. With waits=False, the program has the fault."""
    stream, (tokens, _), made = Stream(), batch(0, size), model()

    def forward() -> None:
        with torch.no_grad():
            made(tokens)

    stream.enqueue(forward)
    times = []
    for _ in range(REPETITIONS):
        stream.wait()
        started = time.perf_counter()
        stream.enqueue(forward)
        if waits:
            stream.wait()
        times.append(1000 * (time.perf_counter() - started))
    stream.wait()
    return median(times)


def run() -> Observation:
    facts = [Fact(f"forward of {size} sequences", forward_ms(size, waits=False), "ms") for size in sequences()]
    return Observation(facts, [] if has_gpu() else CPU_REMARK)


def reveal() -> Observation:
    small, large = sequences()
    careless = {size: forward_ms(size, waits=False) for size in (small, large)}
    waited = {size: forward_ms(size, waits=True) for size in (small, large)}
    facts = [
        *(Fact(f"forward of {size} sequences, not waiting", ms, "ms") for size, ms in careless.items()),
        *(Fact(f"forward of {size} sequences, waiting", ms, "ms") for size, ms in waited.items()),
        Fact(f"{large} sequences relative to {small}, not waiting", careless[large] / careless[small], "times"),
        Fact(f"{large} sequences relative to {small}, waiting", waited[large] / waited[small], "times"),
        Fact("amount of work", large / small, "times", "counted"),
    ]
    return Observation(facts, [] if has_gpu() else CPU_REMARK)


STAGE = Stage(
    3,
    "timing without waiting",
    "The forward pass is implausibly fast, and four times as many sequences take hardly longer.",
    "python {program} --reveal",
    "Launches return when they are queued, so the clock timed the queueing. The time of the work itself appears in the "
    "next operation that waits, often the backward pass or loss.item().",
    "Call torch.cuda.synchronize() before the clock starts and before it stops, or use CUDA events or "
    "`tilesmith bench`. `tilesmith train` times its phases that way.",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
