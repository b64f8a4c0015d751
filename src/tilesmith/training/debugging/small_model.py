"""A Tiny LLaMA and its data, in a size for this device, and timing that waits for the device."""

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
from tilesmith.training.data.tasks import Batch, LlamaTask
from tilesmith.training.running.gradient_guard import GradientGuard

ON_CPU: dict[str, Any] = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "seq_len": 32}
BATCH_SIZE = 8
LEARNING_RATE = 3e-3
TARGET = "cuda:90"
"""The target of predictions on a machine without a GPU."""
SECTOR_BYTES = 32
NO_GPU = "This machine has no GPU to time: predicted values come from a trace of the kernel."
TRACED = 4
"""Traced programs per grid; all programs do the same work."""
REPETITIONS = 10


def is_inspected() -> bool:
    """Return whether `tilesmith inspect` runs this program."""
    return is_interpreting()


def has_gpu() -> bool:
    """Return whether to use a GPU; False under `tilesmith inspect`, which interprets kernels at a small size."""
    return torch.cuda.is_available() and not is_inspected()


def device() -> torch.device:
    return torch.device("cuda" if has_gpu() else "cpu")


@cache
def task_of_size(default: bool) -> LlamaTask:
    return LlamaTask({} if default else ON_CPU)


def task() -> LlamaTask:
    """Return the task with seed 0, with the model's default sizes on a GPU and small ones on a CPU."""
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
    """Return a context in which kernels run: on the GPU, or else in the interpreter."""
    return nullcontext() if has_gpu() or is_inspected() else interpreting()


def train(trained: nn.Module, steps: int, *, batch_size: int = BATCH_SIZE, guarded: bool = False) -> list[float]:
    """Train for some steps with AdamW; return the losses. With `guarded`, raise GradientError as the guard does."""
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
    """Return the median time, with an idle device before and after each repetition."""
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
    """Return the findings of `tilesmith inspect` about a kernel of a program."""
    return inspect(program, targets=(TARGET,), programs=TRACED).kernel(kernel)
