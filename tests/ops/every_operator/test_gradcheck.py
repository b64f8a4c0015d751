"""Gradients against finite differences, in double precision, through the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.lab.check import interpretable
from tilesmith.ops import SPECS
from tilesmith.spec import Case, Spec, is_differentiable

LARGEST_IN_FULL = 4  # elements along a side where every entry of the Jacobian is checked
MOST_IN_FULL = 32  # elements in total: each needs two interpreted runs
MOST_BYTES = 1 << 15

# Two outputs and four gradients: with sizes of two it takes as long as all other operators together.
SMALLER = {"rope": {"batch": 1}}

DIFFERENTIABLE = pytest.mark.parametrize(
    "spec", [spec for spec in SPECS.values() if spec.differentiable], ids=lambda spec: str(spec.name)
)


def differentiable_part(spec: Spec, case: Case) -> tuple[Callable[..., Any], list[Tensor]]:
    """Return the operator as a function of its differentiable arguments, and these arguments."""
    torch.manual_seed(0)
    inputs = spec.inputs(case, torch.float64, "cpu")
    leaves = {name: value.requires_grad_() for name, value in inputs.items() if is_differentiable(value)}

    def function(*values: Tensor) -> Any:
        return spec.op(**{**inputs, **dict(zip(leaves, values, strict=True))})

    return function, list(leaves.values())


@pytest.mark.parametrize(
    "every_entry", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in a random direction", "every entry"]
)
@DIFFERENTIABLE
def test_the_jacobian_at_small_sizes(spec: Spec, every_entry: bool) -> None:
    """In a random direction two interpreted runs see an error of any entry; the entries need two runs each."""
    case = spec.cases[-1]
    shrunk = next(
        smaller
        for side in range(LARGEST_IN_FULL, 0, -1)
        if _elements(spec, smaller := case.with_sizes(**{name: min(size, side) for name, size in case.sizes.items()}))
        <= MOST_IN_FULL
        or side == 1
    )
    function, leaves = differentiable_part(spec, shrunk.with_sizes(**SMALLER.get(spec.name, {})))
    with ts.use("interpret"):
        assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, fast_mode=not every_entry)


@pytest.mark.slow
@DIFFERENTIABLE
def test_the_jacobian_at_real_sizes_in_a_random_direction(spec: Spec) -> None:
    small = [case for case in spec.cases if interpretable(spec, case) and _bytes(spec, case) <= MOST_BYTES]
    assert len(small) >= 2
    for case in small:
        function, leaves = differentiable_part(spec, case)
        with ts.use("interpret"):
            assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-5, fast_mode=True)


def _elements(spec: Spec, case: Case) -> int:
    made = spec.inputs(case, torch.float64, "meta").values()
    return sum(value.numel() for value in made if is_differentiable(value))


def _bytes(spec: Spec, case: Case) -> int:
    made = spec.inputs(case, torch.float64, "meta").values()
    return sum(value.nbytes for value in made if isinstance(value, Tensor))
