"""Parity: whether the versions of a model compute the same predictions and gradients from the same parameters.

The rule follows `tilesmith check`, with v1 as the reference. v1 in float64 gives the exact result. The modelled
rounding error of v1 in the training dtype (`lab/rounding_model.py`) is the yardstick: the error of a version, in the
norm of each tensor, may be twice as large. Rounding errors of a whole model are random, so a single element may have
four times the error. The yardstick has few draws, which say little about a tensor of few elements, so small tensors
have a larger limit.

v1 and v2 are both plain PyTorch. Where v2 has the larger error on a GPU, v2 is the yardstick. One such gradient is that
of attention's bias, a sum that nearly cancels: in float32 on an H200, PyTorch's fused attention (v2) has an error of
2e-4, and v1, which keeps all scores, has 1e-6. Then v2's own parity is known on the GPU to a third of the dtype's
digits, and on a CPU to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tilesmith.lab.comparison import Comparison, compare, root_mean_square
from tilesmith.lab.rounding_model import rounded
from tilesmith.training.data.tasks import Batch, Task
from tilesmith.training.running.distributed import Place
from tilesmith.training.running.mixed_precision import Rounded

REFERENCE = "v1"
FUSED_BY_PYTORCH = "v2"
ELEMENTS = 2.0  # factor on the limit that `tilesmith check` has for one element of an operator
# The limit grows by the factor 1 + CHANCE / √elements. Gradients of Tiny OpenFold in correct versions reached 2.1 times
# the plain limit with 8 elements, 1.8 times with 72, 1.2 times with 192.
CHANCE = 8.0
# Roundings that the limit allows in float32. bf16x3 on tensor cores truncates its sums: one gradient of Tiny OpenFold
# had four times the error of v1, which is 10 roundings.
ROUNDINGS = 8
# The fraction of a tensor's elements that may have a kink in a model with ReLUs. Rounding moves a ReLU's input that is
# almost zero to either side, and the gradient of that hidden unit gains or loses the part of one residue. On an H200
# this affected 1 of 512 units in a block of Tiny OpenFold, with an error of 1e-3: in v3 and v4, in other blocks v1, v2.
KINKED = 0.01
LARGEST_KINK = 0.03  # relative to the element or to the root mean square, whichever is larger
PREDICTIONS = "predictions"
DRAWS = 2  # of the rounding errors of v1


@dataclass(frozen=True)
class Parity:
    """The relative errors of a version against v1 in float64."""

    variant: str
    logits_error: float
    logits_allowed: float
    worst_gradient: str
    worst_gradient_error: float
    worst_gradient_allowed: float
    difference: str = ""  # the worst failure in words; empty where the version passed

    @property
    def passed(self) -> bool:
        return not self.difference

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def parities(task: Task, variants: list[str], dtype: torch.dtype, place: Place, batch_size: int) -> list[Parity]:
    """Return the parity of each variant with v1, on the first batch of the data."""
    batch = tuple(tensor[0].to(place.device) for tensor in task.batches(range(1), batch_size))
    exact = _computed(task, REFERENCE, torch.float64, place, batch)
    yardsticks = {REFERENCE: [_drawn(task, draw, dtype, place, batch) for draw in range(DRAWS)]}
    if place.device.type != "cpu":
        yardsticks[FUSED_BY_PYTORCH] = [_computed(task, FUSED_BY_PYTORCH, dtype, place, batch)]
    return [
        _judged(variant, dtype, _computed(task, variant, dtype, place, batch), exact, yardsticks, task)
        for variant in variants
    ]


def _drawn(task: Task, draw: int, dtype: torch.dtype, place: Place, batch: Batch) -> dict[str, Tensor]:
    """Return the values of v1 with one draw of modelled rounding errors."""
    with rounded(draw):
        return _computed(task, REFERENCE, dtype, place, batch)


def _computed(task: Task, variant: str, dtype: torch.dtype, place: Place, batch: Batch) -> dict[str, Tensor]:
    """Return the predictions, and the gradient of every parameter by its name."""
    model = task.model(task.version(variant))
    _randomise(model)
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


def _randomise(model: nn.Module) -> None:
    """Set random parameters that make every part of the model matter.

    The initial parameters are so small that attention is nearly uniform, for right and wrong queries alike.
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
    yardsticks: Mapping[str, Sequence[Mapping[str, Tensor]]],
    task: Task,
) -> Parity:
    found = {}
    for name, right in exact.items():
        draws = {version: [one[name] for one in several] for version, several in yardsticks.items()}
        found[name] = _compared_by(draws, ours[name], right, dtype)
        if task.rectified and not _passed(found[name]):
            kept = _without_kinks(ours[name], right)
            draws = {version: [one[kept] for one in several] for version, several in draws.items()}
            without = _compared_by(draws, ours[name][kept], right[kept], dtype)
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


def _compared_by(draws: Mapping[str, Sequence[Tensor]], ours: Tensor, exact: Tensor, dtype: torch.dtype) -> Comparison:
    """Return the comparison with the most lenient yardstick."""
    found = [_compared(ours, exact, several, dtype, version) for version, several in draws.items()]
    return _with_chance(max(found, key=lambda one: one.allowed), exact.numel())


def _without_kinks(ours: Tensor, exact: Tensor) -> Tensor:
    """Return a mask of the elements to judge: all except the few largest errors that a kink can explain."""
    error = (ours.double() - exact).abs()
    size = exact.abs().clamp(min=float(root_mean_square(exact)))
    explained = error <= LARGEST_KINK * size
    left_out = error.flatten().topk(int(KINKED * error.numel())).indices
    kept = torch.ones_like(error, dtype=torch.bool)
    kept.view(-1)[left_out] = False
    return kept | ~explained


def _compared(ours: Tensor, exact: Tensor, draws: Sequence[Tensor], dtype: torch.dtype, version: str) -> Comparison:
    """Return the comparison; v2 as yardstick raises the limit to at most the third root of the dtype's precision."""
    comparison = compare(ours, exact, draws, ROUNDINGS if dtype == torch.float32 else 1)
    if version == REFERENCE:
        return comparison
    return replace(comparison, allowed=min(comparison.allowed, torch.finfo(dtype).eps ** (1 / 3)))


def _with_chance(comparison: Comparison, elements: int) -> Comparison:
    """Return the comparison with the limits of a tensor of this many elements."""
    chance = 1 + CHANCE / elements**0.5
    return replace(
        comparison,
        allowed=chance * comparison.allowed,
        worst_allowed=chance * ELEMENTS * comparison.worst_allowed,
    )


def _passed(comparison: Comparison) -> bool:
    within = comparison.worst_error <= comparison.worst_allowed
    return within and comparison.error <= comparison.allowed  # False for NaN


def _difference(name: str, comparison: Comparison) -> str:
    if _passed(comparison):
        return ""
    if comparison.error <= comparison.allowed:
        element = f"element {list(comparison.worst)} of {name}"
        return f"{element} has an error of {comparison.worst_error:.2g}, allowed {comparison.worst_allowed:.2g}"
    return f"{name} has an error of {comparison.error:.2g} of the norm, allowed {comparison.allowed:.2g}"


def _badness(comparison: Comparison) -> tuple[bool, float]:
    """Return a sort key: failures above passes, then the error relative to its limit; NaN is the highest."""
    used = comparison.error / comparison.allowed
    return not _passed(comparison), used if used == used else float("inf")
