"""Fixtures that run a test once for every operator."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tilesmith.ops import SPECS
from tilesmith.ops.runtime.operator import Operator
from tilesmith.spec import Case, Inputs, Spec


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> Spec:
    """A test that takes this runs once for every operator there is."""
    found: Spec = request.param
    return found


@pytest.fixture
def operator(spec: Spec) -> Operator:
    """The spec's own operator, with what our runtime knows about it."""
    assert isinstance(spec.op, Operator)
    return spec.op


@pytest.fixture
def small_case(spec: Spec) -> Case:
    """The second smallest case: the smallest tends to be a single element."""
    return _second_smallest(spec.name)


@pytest.fixture
def inputs(spec: Spec, small_case: Case) -> Inputs:
    """Arguments of the operator in single precision, of a size that the interpreter takes milliseconds for."""
    torch.manual_seed(0)
    return spec.inputs(small_case, torch.float32, "cpu")


@cache
def _second_smallest(operator: str) -> Case:
    spec = SPECS[operator]
    return sorted(spec.cases, key=lambda case: _elements(spec, case))[:2][-1]


def _elements(spec: Spec, case: Case) -> int:
    made = spec.inputs(case, torch.float32, "meta").values()
    return sum(value.numel() for value in made if isinstance(value, torch.Tensor))
