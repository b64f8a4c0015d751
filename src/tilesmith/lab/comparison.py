"""The rule of correctness: how far a tensor may be from the reference.

The model of rounding errors (`rounding_model.py`) computes the reference in the same dtype several times, with other
roundings in each draw. In the norm over all elements, allowed is twice the largest error of the draws, plus twice the
difference between the draws. A single element may have three times the largest error of any element. To the norm the
rule adds the error of one rounding to nearest, half the dtype's epsilon, or up to twice that for few elements. To each
element it adds one epsilon. A spec whose kernels round more often than its reference gives the number of roundings.

So the allowed error is a property of the problem, and the same on every machine. It is rounded to three digits, because
float64 results differ between machines in the sixteenth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

TIMES_MODEL = 2.0  # of the norm
TIMES_ELEMENT = 3.0  # of one element
TIMES_SPREAD = 2.0  # of the difference between draws, which is small where many independent errors add up
ZERO = 1e-15  # relative to terms that cancel; below it a float64 value counts as zero
# A gradient is made of terms as large as the cotangent times 1/√eps of a norm, 316 by default.
CANCELLING = 512.0


@dataclass(frozen=True)
class Comparison:
    """The error of a tensor. `error` and `allowed` are norms relative to the reference's norm."""

    error: float
    allowed: float
    wrong_elements: int
    worst: tuple[int, ...]  # the element with the largest excess over its limit
    worst_error: float
    worst_allowed: float
    first: tuple[int, ...]  # the first element beyond its limit; `worst` if there is none
    first_error: float
    first_allowed: float
    wrong: Tensor = field(compare=False, repr=False)  # which elements are beyond their limits

    @property
    def passed(self) -> bool:
        return self.wrong_elements == 0 and self.error <= self.allowed  # NaN never passes


def compare(
    ours: Tensor,
    exact: Tensor,
    draws: Sequence[Tensor],
    roundings: int = 1,
    terms: float = 0.0,
    plain: Tensor | None = None,
) -> Comparison:
    """Compare our values with the float64 reference.

    `draws` are the reference's values in our dtype, with modelled rounding errors. `terms` is the typical size of
    the terms of the values: where these cancel and every element is zero, zero up to their rounding is right. `plain`
    are PyTorch's values in our dtype: where they overflow, they are right too.
    """
    if ours.numel() == 0:
        return Comparison(0.0, 0.0, 0, (), 0.0, 0.0, (), 0.0, 0.0, ours.bool())
    error = _error(ours, exact)
    # Where the reference overflows in this dtype, infinity is right, and does not raise the allowed error elsewhere.
    overflows = torch.zeros(exact.shape, dtype=torch.bool, device=exact.device)
    for draw in draws:
        overflows |= ~_error(draw, exact).isfinite()
    # One draw at a time: a case on a GPU may be large.
    figures = [(float(one.max()), float(one.norm())) for one in _modelled(draws, exact, overflows)] or [(0.0, 0.0)]
    largest, norms = three_digits(max(one for one, _ in figures)), [norm for _, norm in figures]
    for other in [*draws, *([] if plain is None else [plain])]:
        error = error.masked_fill(exact.isfinite() & ~other.isfinite() & _same(ours, other), 0.0)
    rounding = (roundings - 0.5) * torch.finfo(ours.dtype).eps if ours.is_floating_point() else 0.0
    size = exact.double().abs().nan_to_num(nan=0.0, posinf=0.0).masked_fill(overflows, 0.0)
    typical = three_digits(float(root_mean_square(size)))
    if typical <= ZERO * terms:
        typical = terms
    whole = typical * size.numel() ** 0.5
    allowed = TIMES_ELEMENT * largest + 2 * rounding * size.clamp(min=typical)
    excess = torch.where(error.isnan(), torch.inf, error - allowed)
    wrong = excess > 0
    worst = _index(excess.argmax(), ours)
    first = _index(wrong.int().argmax(), ours) if wrong.any() else worst
    modelled_norm = TIMES_MODEL * max(norms) + TIMES_SPREAD * (max(norms) - min(norms))
    return Comparison(
        error=_ratio(error.norm(), whole),
        # Roundings of many elements average out in the norm; those of a few may all be large.
        allowed=three_digits(_ratio(modelled_norm, whole) + rounding * (1 + ours.numel() ** -0.5)),
        wrong_elements=int(wrong.sum()),
        worst=worst,
        worst_error=float(error[worst]),
        worst_allowed=float(allowed[worst]),
        first=first,
        first_error=float(error[first]),
        first_allowed=float(allowed[first]),
        wrong=wrong,
    )


def _modelled(draws: Sequence[Tensor], exact: Tensor, overflows: Tensor) -> Iterator[Tensor]:
    """Yield the error of each draw, zero where a draw overflows."""
    for draw in draws:
        yield _error(draw, exact).masked_fill_(overflows, 0.0)


def three_digits(number: float) -> float:
    """Return the nearest number with three significant digits."""
    return float(f"{number:.3g}")


def identical(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors hold the same values; NaNs at the same places are equal."""
    if one is None or other is None:
        return one is other
    return bool(_same(one, other).all())


def _index(place: Tensor, tensor: Tensor) -> tuple[int, ...]:
    """Return the index of the element with this row-major number."""
    # torch.unravel_index imports sympy, which takes half a second.
    return tuple(int(part) for part in np.unravel_index(int(place), tuple(tensor.shape)))


def _same(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | ((one != one) & (other != other))


def _error(values: Tensor, exact: Tensor) -> Tensor:
    """Return the error of each element; zero where both are the same infinity or both NaN."""
    difference = (values.double() - exact.double()).abs()
    if not values.is_floating_point():
        difference = difference.clamp(min=1.0)  # different large integers may be equal in float64
    return difference.masked_fill(_same(values, exact), 0.0)


def root_mean_square(values: Tensor) -> Tensor:
    return values.double().square().sum().div(max(values.numel(), 1)).sqrt()


def _ratio(one: Tensor | float, other: float) -> float:
    return float(one) / other if other > 0 else float(one)
