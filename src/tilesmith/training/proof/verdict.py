"""What differs between a patched and an unpatched run, and whether that is rounding.

A run of the unpatched model with other rounding is the yardstick. Rounding errors grow as training goes on, in every
run alike, so each quantity is compared with the same quantity of the yardstick, and losses with those of the same part
of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tilesmith.training.proof.training_run import TrainingRun

FACTOR = 5.0
"""How many times the yardstick's difference in the first gradients is allowed."""
# Training is chaotic: AdamW turns the sign of a gradient near zero into a step of full size. Two right runs differ by a
# factor in their losses and norms: 7 was seen in a small Qwen3 in float32.
CHAOS = 20.0
"""How many times the yardstick's difference in losses, gradient norms and last weights is allowed."""
# Rounding decides at which step a gradient spikes: of two right runs of a Qwen3 in bfloat16, one had a norm of 21 after
# one of 1.4, and the other had none.
SPIKES = 0.1
"""The share of the steps whose gradient norms are not compared: those that differ the most."""
PARTS = 5
"""A run is compared in this many parts, one after the other."""
# Rounding of a tensor of n elements is a sum of n draws: its size is known to about 1/√n.
CHANCE = 8.0
ROUNDINGS = 4.0
"""Roundings of the dtype that are always allowed, relative to the quantity."""


@dataclass(frozen=True)
class Difference:
    """How far the patched run, and the yardstick, are from the unpatched run in one quantity, relative to it."""

    what: str
    where: str
    patched: float
    other_rounding: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.patched <= self.allowed  # False for NaN

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def differences(
    plain: TrainingRun, patched: TrainingRun, other: TrainingRun, start: dict[str, Tensor], dtype: torch.dtype
) -> list[Difference]:
    """Return every difference; `start` are the weights before the first step."""
    least = ROUNDINGS * torch.finfo(dtype).eps
    change = distances(plain.weights, start)
    of_weights = [distances(run.weights, plain.weights) for run in (patched, other)]
    gradients = distances(plain.gradients, {})
    of_gradients = [distances(run.gradients, plain.gradients) for run in (patched, other)]
    return [
        _whole("gradients", "first step", of_gradients, gradients, least, FACTOR),
        _worst(of_gradients, gradients, {name: one.numel() for name, one in start.items()}, least),
        _series("loss", plain.losses, patched.losses, other.losses),
        _series("gradient norm", plain.gradient_norms, patched.gradient_norms, other.gradient_norms, SPIKES),
        _whole("weights, of their change", "last step", of_weights, change, least, CHAOS),
    ]


def distances(tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """Return the norm of each tensor's difference from the wanted one; infinity where only one of both exists.

    Without wanted tensors, return the norm of each tensor.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def distance(name: str) -> float:
        if name not in tensors or (wanted and name not in wanted):
            return math.inf
        ours = tensors[name].to(device).double()
        return float((ours - wanted[name].to(device).double() if wanted else ours).norm())

    return {name: distance(name) for name in {**tensors, **wanted}}


def _total(norms: dict[str, float]) -> float:
    """Return the norm of all; the comparison of single parameters sees those that are missing."""
    return float(sum(one**2 for one in norms.values() if one != math.inf) ** 0.5)


def _whole(
    what: str, where: str, apart: Sequence[dict[str, float]], sizes: dict[str, float], least: float, factor: float
) -> Difference:
    size = _total(sizes) or 1.0
    patched, other = (_total(one) / size for one in apart)
    return Difference(what, where, patched, other, factor * max(other, least))


def _worst(
    apart: Sequence[dict[str, float]], sizes: dict[str, float], elements: dict[str, int], least: float
) -> Difference:
    """Return the difference of the parameter that uses the most of what it is allowed."""
    patched_norms, other_norms = apart
    typical = _total(sizes) / sum(elements[name] for name in sizes) ** 0.5
    found = []
    for name, patched in patched_norms.items():
        count = elements[name]
        # A gradient that is zero but for rounding, as of a key's bias, is measured by the size of the others.
        size = max(sizes.get(name, 0.0), 1e-3 * typical * count**0.5) or 1.0
        other = other_norms.get(name, 0.0) / size
        allowed = FACTOR * (1 + CHANCE / count**0.5) * max(other, least)
        found.append(Difference("gradient of one parameter", name, patched / size, other, allowed))
    return _most_used(found)


def _series(
    what: str, plain: Sequence[float], patched: Sequence[float], other: Sequence[float], left_out: float = 0.0
) -> Difference:
    """Return the difference in the part of the run that uses the most of what it is allowed.

    `left_out` is the share of a part's steps that may differ by any finite number.
    """
    length = -(-len(plain) // PARTS)
    found, yardstick = [], ROUNDINGS * torch.finfo(torch.float32).eps
    for start in range(0, len(plain), length):
        part = slice(start, start + length)
        theirs = torch.tensor(plain[part], dtype=torch.float64)
        size = float(theirs.square().mean().sqrt()) or 1.0
        kept = max(round((1 - left_out) * len(theirs)), 1)
        ours, others = (
            _usual((torch.tensor(one[part], dtype=torch.float64) - theirs).abs(), kept) / size
            for one in (patched, other)
        )
        yardstick = max(yardstick, others)
        where = f"steps {start + 1} to {start + len(theirs)}"
        found.append(Difference(what, where, ours, others, CHAOS * yardstick))
    return _most_used(found)


def _usual(apart: Tensor, kept: int) -> float:
    """Return the root mean square of the smallest differences, this many; NaN where one of all is not finite."""
    return float(apart.sort().values[:kept].square().mean().sqrt()) if apart.isfinite().all() else math.nan


def _most_used(found: Sequence[Difference]) -> Difference:
    return max(found, key=lambda one: one.patched / one.allowed if one.patched == one.patched else math.inf)
