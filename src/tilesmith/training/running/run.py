"""A training run from its first step to its last, and its record."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from tilesmith import optim
from tilesmith.models.versions import Captured, Version
from tilesmith.training.data.tasks import Task
from tilesmith.training.running import checkpoint
from tilesmith.training.running.checkpoint import Checkpoint
from tilesmith.training.running.distributed import Place, mean_over_processes, prepare
from tilesmith.training.running.gradient_guard import GradientError, GradientGuard
from tilesmith.training.running.prefetch import Prefetcher
from tilesmith.training.running.step import EAGER_STEPS, CapturedStep, Phase, Step

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STEPS_PER_READ = 10
"""Every so many steps the host waits for the device and reads the losses and the gradient guard's verdict."""
SECONDS_PER_READ = 1.0
"""Slow steps are read more often, since several processes agree to stop only at a read."""


class SettingsError(Exception):
    """The settings are inconsistent; the message is one line for the user."""


@dataclass(frozen=True)
class Settings:
    """How to train. `batch_size` counts the samples of all processes and all accumulated micro-batches."""

    variant: str = "v1"
    batch_size: int = 8
    num_steps: int = 100
    learning_rate: float = 3e-4
    dtype: str = "float32"
    compile: bool = False
    eager: bool = False  # True: no CUDA graphs, in any version
    accumulate: int = 1
    shard: bool = False


@dataclass
class Record:
    """The results of the steps so far."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """Seconds per step, one value for each interval between two reads; the first interval, the warm-up, is left out."""
    peak_bytes: int | None = None
    interrupted: bool = False

    @property
    def step_ms(self) -> float | None:
        return 1000 * median(self.step_seconds) if self.step_seconds else None


class Run:
    """A model in training. `train` runs the steps; the other methods may be called afterwards."""

    def __init__(self, task: Task, settings: Settings, place: Place, resumed: Checkpoint | None = None) -> None:
        _require_possible(settings, place)
        _require_memory(task)
        self.task = task
        self.settings = settings
        self.place = place
        self.record = Record()
        self._stopping = threading.Event()
        self._handles_signals = False
        version = task.version(settings.variant)
        self.about = version.about
        self.captured = captured_by(version, settings, place)
        self.model = task.model(version)
        prepared = prepare(self.model, place, DTYPES[settings.dtype], shard=settings.shard)
        kind = optim.AdamW if version.optimizer == "tilesmith" else AdamW
        self.optimizer = kind(
            self.model.parameters(),
            lr=settings.learning_rate,
            fused=version.optimizer != "plain" or None,
            capturable=self.captured == "step",
        )
        if resumed is not None:
            checkpoint.restore(resumed, self.model, self.optimizer)
            self.record.losses = list(resumed.facts["losses"])
        self._prefetcher = Prefetcher(task, place, settings.batch_size, len(self.record.losses))
        self._guard = GradientGuard(self.model.named_parameters())
        if settings.compile:
            prepared.module.compile()
        step = Step(
            prepared.module,
            self.optimizer,
            self._guard,
            self._prefetcher.batch(len(self.record.losses)),
            accumulate=settings.accumulate,
            synchronised=prepared.synchronised,
        )
        self._step = step if self.captured == "nothing" else CapturedStep(step, update=self.captured == "step")

    @property
    def steps_done(self) -> int:
        return len(self.record.losses)

    def train(self, report: Callable[[Record], None] = lambda record: None, until: int | None = None) -> Record:
        """Train up to step number `until`, by default to the last; call `report` whenever the losses are read.

        Raises GradientError where a gradient is missing or not finite. Ctrl-C or SIGTERM ends training after the
        current step; with several processes, at the next read.
        """
        last = self.settings.num_steps if until is None else until
        if self.place.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        unseen: list[Tensor] = []
        started, interval, warm = time.perf_counter(), EAGER_STEPS + 1, False
        with self.stoppable():
            for number in range(self.steps_done, last):
                self._step.load(self._prefetcher.batch(number))
                self._step()
                unseen.append(self._step.loss.clone())
                stops_here = self.place.processes == 1 and self._stopping.is_set()
                # The first interval contains all one-time work: compiling, capturing, warming up.
                if len(unseen) == interval or number + 1 == last or stops_here:
                    seconds, stop = self._read(unseen, started)
                    if warm or stop or number + 1 == last:
                        self.record.step_seconds.append(seconds)
                    self.record.interrupted = stop and number + 1 < self.settings.num_steps
                    report(self.record)
                    unseen, started, warm = [], time.perf_counter(), True
                    interval = STEPS_PER_READ
                    if self.place.processes > 1:
                        interval = min(interval, max(1, int(SECONDS_PER_READ / seconds)))
                    if stop:
                        break
        return self.record

    def _read(self, losses: list[Tensor], started: float) -> tuple[float, bool]:
        """Record the losses since the last read; return the seconds per step, and whether any process must stop.

        The processes agree on both, so that they read and stop after the same step.
        """
        found = torch.stack(losses)
        if found.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / len(losses)
        first = self.steps_done + 1
        try:
            self._guard.require_finite()
        except GradientError as error:
            raise GradientError(f"{error}, first in step {first} to {first + len(losses) - 1}") from None
        facts = found.new_tensor([seconds, float(self._stopping.is_set())])
        *read, seconds, stopping = mean_over_processes(torch.cat([found, facts])).tolist()
        self.record.losses += read
        if found.is_cuda:
            self.record.peak_bytes = torch.cuda.max_memory_allocated()
        return seconds, stopping > 0

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let the first Ctrl-C or SIGTERM within the block end training after a step; a second one acts as usual."""
        if self._handles_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def stop(number: int, frame: Any) -> None:
            self._stopping.set()
            signal.signal(number, before[signal.Signals(number)])

        self._handles_signals = True
        for number in before:
            signal.signal(number, stop)
        try:
            yield
        finally:
            self._handles_signals = False
            for number, handler in before.items():
                signal.signal(number, handler)

    def phases(self) -> list[Phase]:
        """Return the phases of a step, which run on the latest batch."""
        return self._step.phases()

    def one_more_step(self) -> None:
        """Train on the latest batch again without a record, for profiling."""
        self._step()

    def checkpoint(self) -> Checkpoint:
        """Return everything that a resumed run needs. All processes must call this together."""
        facts = {
            "model": self.task.name,
            "config": self.task.config,
            "settings": asdict(self.settings),
            "losses": self.record.losses,
            "data_sha256": self.task.data_sha256(),
        }
        return checkpoint.taken(self.model, self.optimizer, facts)

    def close(self) -> None:
        self._prefetcher.close()

    def result(self, phase_ms: dict[str, float]) -> dict[str, Any]:
        """Return the run in the format of `--json`."""
        record, step_ms = self.record, self.record.step_ms
        samples_per_s = 1000 * self.settings.batch_size / step_ms if step_ms else None
        return {
            "model": self.task.name,
            "variant": self.settings.variant,
            "about": self.about,
            "config": {**self.task.config, **asdict(self.settings), "processes": self.place.processes},
            "captured": self.captured,
            "losses": record.losses,
            "best_loss": self.task.best_loss,
            "step_ms": step_ms,
            **{f"{phase}_ms": phase_ms.get(phase) for phase in ("forward", "backward", "optimizer")},
            "samples_per_s": samples_per_s,
            "tokens_per_s": samples_per_s * self.task.tokens_per_sample if samples_per_s else None,
            "peak_bytes": record.peak_bytes,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "partial": record.interrupted,
        }


def captured_by(version: Version[Any], settings: Settings, place: Place) -> Captured:
    """Return the part of a step that a CUDA graph captures: nothing on a CPU, with several processes, or if eager."""
    can_be = place.device.type == "cuda" and place.processes == 1 and not settings.eager
    return version.captured if can_be else "nothing"


def _require_memory(task: Task) -> None:
    """Raise SettingsError where the parameters alone exceed the machine's memory: the system would end the process."""
    try:
        needed = 4 * task.parameter_count()
    except (RuntimeError, TypeError, OverflowError):  # more elements than an index can count
        raise SettingsError("the sizes are too large: PyTorch cannot index so many parameters") from None
    if problem := memory_problem(needed):
        raise SettingsError(problem)


def memory_problem(needed: int) -> str | None:
    """Return why parameters of so many bytes cannot be made on this machine, or None."""
    held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else needed
    if needed <= held:
        return None
    return (
        f"the sizes are too large: the parameters need {needed / 2**30:,.0f} GiB of memory, "
        f"but this machine has {held / 2**30:,.0f} GiB"
    )


def _require_possible(settings: Settings, place: Place) -> None:
    if settings.shard and place.processes == 1:
        raise SettingsError("shard needs several processes: start them with torchrun --nproc-per-node 2 -m tilesmith …")
    pieces = place.processes * settings.accumulate
    if settings.batch_size % pieces:
        raise SettingsError(
            f"batch_size is {settings.batch_size}, but must be divisible by {place.processes} processes "
            f"times {settings.accumulate} accumulated micro-batches: it counts the samples of all of them"
        )
