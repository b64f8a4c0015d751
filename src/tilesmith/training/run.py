"""A training run from its first step to its last, and what it found."""

from __future__ import annotations

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
from tilesmith.training import checkpoint
from tilesmith.training.checkpoint import Checkpoint
from tilesmith.training.distributed import Place, mean_over_processes, prepare
from tilesmith.training.feed import Feed
from tilesmith.training.guard import GradientError, GradientGuard
from tilesmith.training.steps import EAGER_STEPS, CapturedStep, Phase, Step
from tilesmith.training.tasks import Task

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOOKED_AT = 10
"""Steps between two looks at the losses and the guard's verdict, for which the host waits for the device."""


class SettingsError(Exception):
    """Which settings do not go together, in one line for the user."""


@dataclass(frozen=True)
class Settings:
    """How to train. The batch is that of all processes and all accumulated pieces together."""

    variant: str = "v1"
    batch_size: int = 8
    num_steps: int = 100
    learning_rate: float = 3e-4
    dtype: str = "float32"
    compile: bool = False
    eager: bool = False  # no CUDA graphs, whatever the version
    accumulate: int = 1
    shard: bool = False


@dataclass
class Record:
    """What the steps have shown so far."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """Seconds per step, one value for each stretch between two looks but for the first, which warms up."""
    peak_bytes: int | None = None
    interrupted: bool = False

    @property
    def step_ms(self) -> float | None:
        return 1000 * median(self.step_seconds) if self.step_seconds else None


class Run:
    """A model in training. `train` takes its steps; the rest may be asked for afterwards."""

    def __init__(self, task: Task, settings: Settings, place: Place, resumed: Checkpoint | None = None) -> None:
        _require_possible(settings, place)
        self.task = task
        self.settings = settings
        self.place = place
        self.record = Record()
        version = task.version(settings.variant)
        self.about = version.about
        self.captured = what_is_captured(version, settings, place)
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
        self._feed = Feed(task, place, settings.batch_size, len(self.record.losses))
        self._guard = GradientGuard(self.model.named_parameters())
        if settings.compile:
            prepared.module.compile()
        step = Step(
            prepared.module,
            self.optimizer,
            self._guard,
            self._feed.batch(len(self.record.losses)),
            accumulate=settings.accumulate,
            synchronised=prepared.synchronised,
        )
        self._step = step if self.captured == "nothing" else CapturedStep(step, update=self.captured == "step")

    @property
    def steps_done(self) -> int:
        return len(self.record.losses)

    def train(self, report: Callable[[Record], None] = lambda record: None, until: int | None = None) -> Record:
        """Go on to step number `until`, by default to the last. `report` is called at every look.

        Raises GradientError as the guard does. Ctrl-C ends it after the step that it came in.
        """
        last = self.settings.num_steps if until is None else until
        if self.place.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        unseen: list[Tensor] = []
        started, warm = time.perf_counter(), False
        with _stoppable() as stopping:
            for number in range(self.steps_done, last):
                self._step.load(self._feed.batch(number))
                self._step()
                unseen.append(self._step.loss.clone())
                is_last = number + 1 == last or (stopping.is_set() and self.place.processes == 1)
                # The first stretch holds all that happens only once: compiling, capturing, warming up.
                if len(unseen) == (LOOKED_AT if warm else EAGER_STEPS + 1) or is_last:
                    seconds = self._look(unseen, started)
                    if warm or is_last:
                        self.record.step_seconds.append(seconds)
                    self.record.interrupted = is_last and number + 1 < last
                    report(self.record)
                    unseen, started, warm = [], time.perf_counter(), True
                if is_last:
                    break
        return self.record

    def _look(self, losses: list[Tensor], started: float) -> float:
        """Take over what the device has found since the last look. Returns seconds per step."""
        found = torch.stack(losses)
        if found.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / len(losses)
        first = self.steps_done + 1
        try:
            self._guard.require_finite()
        except GradientError as error:
            raise GradientError(f"{error}, first in step {first} to {first + len(losses) - 1}") from None
        self.record.losses += mean_over_processes(found).tolist()
        if found.is_cuda:
            self.record.peak_bytes = torch.cuda.max_memory_allocated()
        return seconds

    def phases(self) -> list[Phase]:
        """What a step does, phase by phase, on the batch that was trained on last."""
        return self._step.phases()

    def one_more_step(self) -> None:
        """The last batch once more, which no record tells of: for profiling."""
        self._step()

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on. Every process must ask for it, if one does."""
        facts = {
            "model": self.task.name,
            "config": self.task.config,
            "settings": asdict(self.settings),
            "losses": self.record.losses,
        }
        return checkpoint.taken(self.model, self.optimizer, facts)

    def close(self) -> None:
        self._feed.close()

    def result(self, phase_ms: dict[str, float]) -> dict[str, Any]:
        """The run as `--json` holds it."""
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


def what_is_captured(version: Version[Any], settings: Settings, place: Place) -> Captured:
    """CUDA graphs are for one process on a GPU, and for those who do not refuse them."""
    can_be = place.device.type == "cuda" and place.processes == 1 and not settings.eager
    return version.captured if can_be else "nothing"


def _require_possible(settings: Settings, place: Place) -> None:
    if settings.shard and place.processes == 1:
        raise SettingsError("shard takes several processes: start it with torchrun --nproc-per-node 2 -m tilesmith …")
    pieces = place.processes * settings.accumulate
    if settings.batch_size % pieces:
        raise SettingsError(
            f"batch_size is {settings.batch_size}, which cannot be divided by {place.processes} processes "
            f"times {settings.accumulate} accumulated pieces: it is the batch of all of them together"
        )


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of ending the step half-way; a second one ends the program as ever."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        stopping.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
