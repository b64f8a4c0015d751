"""Fixtures that run a test once for every operator."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tilesmith.ops import SPECS
from tilesmith.ops.runtime.operator import Operator
from tilesmith.spec import Case, Inputs, Spec

# Where the second smallest case takes the interpreter a tenth of a second or more: fewer programs of the same kernels.
SMALLER = {
    "attention": {"key_heads": 1},
    "attention_update": {"rows": 1},
    "attention_varlen": {"sequences": 3, "average": 5, "key_heads": 1},
    "layer_norm": {"rows": 19},
    "msa_column_attention": {"columns": 2},
    "msa_row_attention": {"rows": 2},
    "outer_product_mean": {"residues": 2},
    "rope": {"positions": 3},
    "triangle_attention": {"rows": 2},
}


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> Spec:
    """A test that takes this runs once for every operator there is."""
    found: Spec = request.param
    return found


@pytest.fixture
def operator(spec: Spec) -> Operator[..., Any]:
    """The spec's own operator, with what our runtime knows about it."""
    assert isinstance(spec.op, Operator)
    return spec.op


@pytest.fixture
def ordinary_case(spec: Spec) -> Case:
    """The second smallest case: the smallest tends to be a single element."""
    return _second_smallest(spec.name)


@pytest.fixture
def small_case(spec: Spec, ordinary_case: Case) -> Case:
    """That, or something smaller yet."""
    return ordinary_case.with_sizes(**SMALLER.get(spec.name, {}))


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
