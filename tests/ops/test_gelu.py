"""gelu in 16-bit dtypes: every number there is, beside float64."""

from __future__ import annotations

import math

import pytest
import torch

import tilesmith as ts

HALF = (torch.float16, torch.bfloat16)


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Return all finite numbers of a 16-bit dtype."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()].clone()


def units_off(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest distance from the exact results, in units of the last place of the result's dtype."""
    facts = torch.finfo(result.dtype)
    unit = exact.abs().clamp(min=facts.tiny).log2().floor().exp2() * facts.eps
    return float(((result.double() - exact).abs() / unit).max())


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_half_number_is_rounded_as_if_computed_exactly(dtype: torch.dtype) -> None:
    x = every_number(dtype).requires_grad_()
    with ts.use("interpret"):
        y = ts.ops.gelu(x)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    exact = x.detach().double()
    below = 0.5 * torch.special.erfc(-exact * 0.5**0.5)
    slope = below + exact * torch.exp(-0.5 * exact * exact) / math.sqrt(2 * math.pi)
    assert units_off(y.detach(), exact * below) < 0.51
    assert units_off(dx, slope) < 2  # the slope crosses zero at −0.75, between two numbers
