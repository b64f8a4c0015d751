"""Compile the kernels of all cases in parallel processes, before anything is timed.

A case takes milliseconds on the GPU, but its kernels take seconds to compile. Each process runs its share of the cases
once, which leaves the kernels in Triton's cache on disk. A process that crashes loses its current case only: that case
compiles when it is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.process import BaseProcess
from typing import Any

from tilesmith.lab.bench.survey.surveyor import DrawnCase

LARGE_BYTES = 1 << 30  # cases with larger inputs run one at a time, since all processes share the memory of the GPU
POLL_SECONDS = 0.2
LONGEST_CASE_SECONDS = 300.0  # without any case finished, the processes are ended


def compile_ahead(
    cases: Sequence[DrawnCase], jobs: int, *, run: Callable[[DrawnCase, Any], None] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> int:  # fmt: skip
    """Run every case once in one of `jobs` processes; return how many ran. `report` gets that number as it grows."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    taken, done, large = context.Value("i", 0), context.Value("i", 0), context.Lock()
    processes = [
        context.Process(target=_serve, args=(tuple(cases), run or run_once, taken, done, large), daemon=True)
        for _ in range(min(jobs, len(cases)))
    ]
    for process in processes:
        process.start()
    try:
        _wait(processes, done, report)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return int(done.value)


def _wait(processes: Sequence[BaseProcess], done: Any, report: Callable[[int], None]) -> None:
    last, changed = -1, time.monotonic()
    while any(process.is_alive() for process in processes):
        if done.value != last:
            last, changed = done.value, time.monotonic()
            report(last)
        if time.monotonic() - changed > LONGEST_CASE_SECONDS:
            return
        time.sleep(POLL_SECONDS)
    report(done.value)


def _serve(
    cases: Sequence[DrawnCase], run: Callable[[DrawnCase, Any], None], taken: Any, done: Any, large: Any
) -> None:
    """Run in a process: take the next case until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the other cores have processes of their own
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(cases):
            return
        with suppress(Exception):  # the surveyor meets the same error, and reports it
            run(cases[number], large)
        with done.get_lock():
            done.value += 1


def run_once(case: DrawnCase, large: Any) -> None:
    """Call ours and the rivals that compile, forward alone and with the backward."""
    import torch

    from tilesmith.lab.bench.measuring.timed_calls import computed, function_of
    from tilesmith.lab.bench.result import OURS
    from tilesmith.lab.bench.running.bench_units import configuration
    from tilesmith.lab.bench.survey.checking import inputs_of
    from tilesmith.lab.bench.survey.subjects import subject

    one = subject(case.source.load(), case.drawn)
    shapes = one.spec.inputs(one.case, one.dtype, "meta")
    held = sum(value.nbytes for value in shapes.values() if isinstance(value, torch.Tensor))
    with large if held > LARGE_BYTES else nullcontext():
        made = inputs_of(one, "cuda", seed=0)
        for name in (OURS, *(rival for rival in case.rivals if rival != "torch")):
            with suppress(Exception), configuration(case.source, {}) if name == OURS else nullcontext():
                function = function_of(one.spec, name)
                computed(function, one.spec, "fwd")(**made.arguments)
                if one.spec.differentiable:
                    computed(function, one.spec, "both")(**made.values)
        torch.cuda.synchronize()
        del made
        torch.cuda.empty_cache()
