"""One training run of a proof: AdamW, the same batches for every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

UNTIMED = 5
"""The first steps compile kernels and are not timed."""


@dataclass
class TrainingRun:
    """The record of one run. Gradients are those of the first step, weights those after the last, both on the CPU."""

    name: str
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    step_ms: float | None = None
    peak_bytes: int | None = None


def trained(
    name: str,
    model: nn.Module,
    batches: Sequence[Mapping[str, Tensor]],
    learning_rate: float,
    progress: Callable[[str, int], None],
) -> TrainingRun:
    """Train the model on the batches and return the record."""
    run = TrainingRun(name)
    parameters = {key: one for key, one in model.named_parameters() if one.requires_grad}
    device = next(iter(parameters.values())).device
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(parameters.values(), lr=learning_rate, fused=on_gpu or None)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    losses, norms = [], []
    start = time.perf_counter()
    for step, batch in enumerate(batches):
        if step == min(UNTIMED, len(batches) - 1):
            _wait(device)
            start = time.perf_counter()
        loss: Tensor = model(**{key: one.to(device, non_blocking=True) for key, one in batch.items()}).loss
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        if step == 0:
            run.gradients = {key: on_cpu(one.grad) for key, one in parameters.items() if one.grad is not None}
        norms.append(torch.nn.utils.get_total_norm([one.grad for one in parameters.values() if one.grad is not None]))
        losses.append(loss.detach())
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        progress(name, step + 1)
    _wait(device)
    run.step_ms = 1000 * (time.perf_counter() - start) / max(1, len(batches) - UNTIMED)
    run.peak_bytes = torch.cuda.max_memory_allocated(device) if on_gpu else None
    run.losses = [float(one) for one in losses]
    run.gradient_norms = [float(one) for one in norms]
    run.weights = {key: on_cpu(one) for key, one in parameters.items()}
    return run


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a copy that later steps do not change."""
    return tensor.detach().to("cpu", copy=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
