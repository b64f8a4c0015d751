"""Stage 3: the clock is stopped when the work has been handed over, not when it has been done."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tilesmith.training.debugging.case import Fact, Seen, Stage, main
from tilesmith.training.debugging.small import REPETITIONS, batch, has_gpu, model, wait

HERE = [
    "PyTorch on a CPU returns when the work is done, so there the fault cannot mislead. Here a thread takes the place "
    "of the GPU's stream: it is handed the forward pass, and does it while the program goes on."
]


class Stream:
    """Takes work and returns at once: a GPU does, and where there is none, a thread that works through a queue."""

    def __init__(self) -> None:
        self._thread = None if has_gpu() else ThreadPoolExecutor(1)
        self._last: Future[Any] | None = None

    def hand_over(self, work: Callable[[], Any]) -> None:
        if self._thread is None:
            work()
        else:
            self._last = self._thread.submit(work)

    def wait(self) -> None:
        wait()
        if self._last is not None:
            self._last.result()


def sequences() -> tuple[int, int]:
    """Of a small batch and of one four times as large; on a GPU both large enough to keep it busy past the launches."""
    return (64, 256) if has_gpu() else (4, 16)


def forward_ms(size: int, *, waits: bool) -> float:
    """Of a batch of so many sequences. Without `waits`, the program with the fault."""
    stream, (tokens, _), made = Stream(), batch(0, size), model()

    def forward() -> None:
        with torch.no_grad():
            made(tokens)

    stream.hand_over(forward)
    times = []
    for _ in range(REPETITIONS):
        stream.wait()
        started = time.perf_counter()
        stream.hand_over(forward)
        if waits:
            stream.wait()
        times.append(1000 * (time.perf_counter() - started))
    stream.wait()
    return median(times)


def run() -> Seen:
    facts = [Fact(f"forward of {size} sequences", forward_ms(size, waits=False), "ms") for size in sequences()]
    return Seen(facts, [] if has_gpu() else HERE)


def look() -> Seen:
    few, many = sequences()
    careless = {size: forward_ms(size, waits=False) for size in (few, many)}
    waited = {size: forward_ms(size, waits=True) for size in (few, many)}
    facts = [
        *(Fact(f"forward of {size} sequences, not waiting", ms, "ms") for size, ms in careless.items()),
        *(Fact(f"forward of {size} sequences, waiting", ms, "ms") for size, ms in waited.items()),
        Fact(f"{many} sequences to {few}, not waiting", careless[many] / careless[few], "times"),
        Fact(f"{many} sequences to {few}, waiting", waited[many] / waited[few], "times"),
        Fact("work that there is", many / few, "times", "counted"),
    ]
    return Seen(facts, [] if has_gpu() else HERE)


STAGE = Stage(
    3,
    "timing without waiting",
    "The forward pass is unbelievably fast, and four times as many sequences take hardly longer.",
    "python {program} --look",
    "Launches return when they are queued. The clock has timed the queueing; the work itself turns up in whatever "
    "waits next, often the backward pass or loss.item().",
    "Wait before the clock starts and before it stops: torch.cuda.synchronize(), or use events, or `tilesmith bench`. "
    "`tilesmith train` times its phases that way.",
    run,
    look,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
