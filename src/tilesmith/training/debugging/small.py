"""What the stages share: a Tiny LLaMA and its data, of a size for the device at hand, and timing that waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from statistics import median
from typing import Any

import torch
from torch import nn

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Kernel
from tilesmith.models.llama import Config, Llama, Parts
from tilesmith.models.llama.parts import V1
from tilesmith.toolchain.interpreter import interpreting, is_interpreting
from tilesmith.training.guard import GradientGuard
from tilesmith.training.steps import Batch
from tilesmith.training.tasks import LlamaTask

ON_CPU: dict[str, Any] = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "seq_len": 32}
BATCH_SIZE = 8
LEARNING_RATE = 3e-3
TARGET = "cuda:90"
"""Whose memory and arithmetic the predictions are about, where there is no GPU to ask."""
SECTOR_BYTES = 32
NO_GPU = "There is no GPU here to time: what is predicted comes from a trace of the kernel."
TRACED = 4
"""Programs of a grid that are traced: all do the same."""
REPETITIONS = 10


def is_inspected() -> bool:
    """Whether someone looks on, as `tilesmith inspect` does."""
    return is_interpreting()


def has_gpu() -> bool:
    """While someone looks on there is none: kernels are interpreted, and a small size is enough to see what they do."""
    return torch.cuda.is_available() and not is_inspected()


def device() -> torch.device:
    return torch.device("cuda" if has_gpu() else "cpu")


@cache
def task_of_size(default: bool) -> LlamaTask:
    return LlamaTask({} if default else ON_CPU)


def task() -> LlamaTask:
    """Seed 0 of the chain of tokens; on a GPU the model's default sizes."""
    return task_of_size(has_gpu())


def config() -> Config:
    sizes = {name: value for name, value in task().config.items() if name not in ("data", "seed")}
    return Config(**sizes)


def model(parts: Parts = V1.parts) -> Llama:
    made = Llama(config(), parts)
    return made.to(device()) if has_gpu() else made


def batch(step: int, size: int = BATCH_SIZE) -> Batch:
    return tuple(tensor[0].to(device()) for tensor in task().batches(range(step, step + 1), size))


def launching() -> AbstractContextManager[None]:
    """Where kernels run: on the GPU, or else in the interpreter."""
    return nullcontext() if has_gpu() or is_inspected() else interpreting()


def train(trained: nn.Module, steps: int, *, batch_size: int = BATCH_SIZE, guarded: bool = False) -> list[float]:
    """Some steps of AdamW, each on the next batch. Returns the losses. The guard raises GradientError."""
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE)
    guard = GradientGuard(trained.named_parameters())
    losses = []
    with launching():
        for step in range(steps):
            optimizer.zero_grad()
            loss = trained(*batch(step, batch_size))
            loss.backward()
            if guarded:
                guard.observe()
            optimizer.step()
            losses.append(loss.item())
    return losses


def milliseconds(action: Callable[[], Any], repetitions: int = REPETITIONS) -> float:
    """The median, with the device idle before and after each."""
    action()
    times = []
    for _ in range(repetitions):
        wait()
        started = time.perf_counter()
        action()
        wait()
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


def wait() -> None:
    if has_gpu():
        torch.cuda.synchronize()


def traced(program: Callable[[], Any], kernel: str) -> Kernel:
    """What `tilesmith inspect` finds out about a kernel of a program."""
    return inspect(program, targets=(TARGET,), programs=TRACED).kernel(kernel)
