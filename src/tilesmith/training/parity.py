"""Do the versions of a model mean the same? Predictions and every gradient, on the same parameters and batch.

The rule is like that of `tilesmith check`, with v1 as the reference: v1 in float64 says what is right, v1 in the dtype
that is trained in says how exact an answer can be expected, and a version may be off by twice as much in the norm over
each tensor. Roundings of a whole model add up by chance, so a single element may be off by four times as much, and a
tensor of few elements by more than a large one: what v1 is off by is one draw, and of few elements it tells little.

Both v1 and v2 are plain PyTorch, and where v2 is further off on a GPU, it is v2 that says what can be expected there.
That is so for the bias of attention, whose gradient is a sum that nearly cancels: PyTorch's fused attention was off by
2e-4 in single precision on an H200, where v1, which keeps all scores, was off by 1e-6. That v2 itself means the same is
then known on the GPU to a third of the dtype's digits, and to all of them on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tilesmith.lab.comparison import Comparison, compare, root_mean_square
from tilesmith.training.distributed import Place
from tilesmith.training.precision import Rounded
from tilesmith.training.steps import Batch
from tilesmith.training.tasks import Task

REFERENCE = "v1"
FUSED_BY_PYTORCH = "v2"
ELEMENTS = 2.0  # times what `tilesmith check` allows an element of an operator
# Over the root of the number of elements, added to the limit as a share of it. Gradients of Tiny OpenFold in versions
# that mean the same went up to 2.1 times the limit with 8 elements, 1.8 times with 72, 1.2 times with 192.
CHANCE = 8.0
# In single precision, of the many that follow one another in a model: tensor cores multiply it in parts and cut off
# what a sum cannot hold, and so were off by four times what v1 was in one gradient of Tiny OpenFold: by 10 of these.
ROUNDINGS = 8
# Of a tensor's elements where the model rectifies. An input of a rectifier that is all but zero is rounded to either
# side of it, and the gradient of its hidden unit then has one residue's share more or less. On an H200 that befell one
# unit of 512 in a block of Tiny OpenFold, off by 1e-3, in v3 and v4; in other blocks, in v1 and v2. One of many shares
# is never more than a small part of the whole.
KINKED = 0.01
LARGEST_KINK = 0.03  # of an element, or of a typical one
PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Parity:
    """How far a version is from v1 in float64, relative to the size of what is compared."""

    variant: str
    logits_error: float
    logits_allowed: float
    worst_gradient: str
    worst_gradient_error: float
    worst_gradient_allowed: float
    difference: str = ""  # the worst of what is further off than it may be, in words

    @property
    def passed(self) -> bool:
        return not self.difference

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def parities(task: Task, variants: list[str], dtype: torch.dtype, place: Place, batch_size: int) -> list[Parity]:
    """Each of the variants beside v1, on the first batch of the data."""
    batch = tuple(tensor[0].to(place.device) for tensor in task.batches(range(1), batch_size))
    exact = _found(task, REFERENCE, torch.float64, place, batch)
    yardsticks = [REFERENCE] if place.device.type == "cpu" else [REFERENCE, FUSED_BY_PYTORCH]
    plain = {variant: _found(task, variant, dtype, place, batch) for variant in yardsticks}
    return [
        _judged(variant, dtype, plain.get(variant) or _found(task, variant, dtype, place, batch), exact, plain, task)
        for variant in variants
    ]


def _found(task: Task, variant: str, dtype: torch.dtype, place: Place, batch: Batch) -> dict[str, Tensor]:
    """Predictions, and the gradient of the loss for every parameter by its name."""
    model = task.model(task.version(variant))
    _enliven(model)
    model.to(place.device)
    computing: nn.Module = model
    if dtype == torch.float64:
        batch = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in batch)
        model.double()
    elif dtype != torch.float32:
        computing = Rounded(model, dtype)
    with torch.no_grad():
        predictions = computing(*batch[:-1])
    computing(*batch).backward()
    missing = torch.full((), torch.nan, device=place.device)
    return {
        PREDICTIONS: predictions,
        **{
            name: missing.expand_as(one) if one.grad is None else one.grad
            for name, one in model.named_parameters()
        },
    }  # fmt: skip


def _enliven(model: nn.Module) -> None:
    """Parameters that make every part of the model count.

    The initial ones are so small that scores are nearly zero, so attention is nearly uniform, whatever has become of
    the queries before.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1 + 0.2 * noise)


def _judged(
    variant: str,
    dtype: torch.dtype,
    ours: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    plain: Mapping[str, Mapping[str, Tensor]],
    task: Task,
) -> Parity:
    found = {}
    for name, right in exact.items():
        yardsticks = {version: one[name] for version, one in plain.items()}
        found[name] = _compared_by(yardsticks, ours[name], right, dtype)
        if task.rectified and not _passed(found[name]):
            kept = _but_for_kinks(ours[name], right)
            yardsticks = {version: one[kept] for version, one in yardsticks.items()}
            without = _compared_by(yardsticks, ours[name][kept], right[kept], dtype)
            found[name] = without if _passed(without) else found[name]
    predictions = found.pop(PREDICTIONS)
    worst = max(found, key=lambda name: _badness(found[name]))
    return Parity(
        variant,
        predictions.error,
        predictions.allowed,
        worst,
        found[worst].error,
        found[worst].allowed,
        _difference(PREDICTIONS, predictions) or _difference(f"the gradient of {worst}", found[worst]),
    )


def _compared_by(yardsticks: Mapping[str, Tensor], ours: Tensor, exact: Tensor, dtype: torch.dtype) -> Comparison:
    """By the most lenient of plain PyTorch's versions."""
    found = [_compared(ours, exact, plain, dtype, version) for version, plain in yardsticks.items()]
    return _with_chance(max(found, key=lambda one: one.allowed), exact.numel())


def _but_for_kinks(ours: Tensor, exact: Tensor) -> Tensor:
    """Which elements are judged: not the few that are furthest off, if that is by no more than a kink could make."""
    error = (ours.double() - exact).abs()
    size = exact.abs().clamp(min=float(root_mean_square(exact)))
    explained = error <= LARGEST_KINK * size
    left_out = error.flatten().topk(int(KINKED * error.numel())).indices
    kept = torch.ones_like(error, dtype=torch.bool)
    kept.view(-1)[left_out] = False
    return kept | ~explained


def _compared(ours: Tensor, exact: Tensor, plain: Tensor, dtype: torch.dtype, version: str) -> Comparison:
    """With a limit that v2, where it is far off itself, does not raise any further."""
    comparison = compare(ours, exact, plain, ROUNDINGS if dtype == torch.float32 else 1)
    if version == REFERENCE:
        return comparison
    return replace(comparison, allowed=min(comparison.allowed, torch.finfo(dtype).eps ** (1 / 3)))


def _with_chance(comparison: Comparison, elements: int) -> Comparison:
    chance = 1 + CHANCE / elements**0.5
    return replace(
        comparison,
        allowed=chance * comparison.allowed,
        worst_allowed=chance * ELEMENTS * comparison.worst_allowed,
    )


def _passed(comparison: Comparison) -> bool:
    within = comparison.worst_error <= comparison.worst_allowed
    return within and comparison.error <= comparison.allowed  # NaN passes neither


def _difference(name: str, comparison: Comparison) -> str:
    if _passed(comparison):
        return ""
    if comparison.error <= comparison.allowed:
        element = f"element {list(comparison.worst)} of {name}"
        return f"{element} is off by {comparison.worst_error:.2g}, allowed {comparison.worst_allowed:.2g}"
    return f"{name}: off by {comparison.error:.2g} of the norm, allowed {comparison.allowed:.2g}"


def _badness(comparison: Comparison) -> tuple[bool, float]:
    """Failures first, then by how much of what is allowed is used up; NaN is the worst there is."""
    used = comparison.error / comparison.allowed
    return not _passed(comparison), used if used == used else float("inf")
