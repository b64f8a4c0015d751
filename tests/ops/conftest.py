"""Fixtures that run a test once for every operator."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tilesmith.ops import SPECS
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Plan
from tilesmith.spec import Case, Inputs, Spec

# Smaller sizes for cases that take the interpreter 0.1 s or more: fewer programs of the same kernels.
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
    """Run a test once for every operator."""
    found: Spec = request.param
    return found


@pytest.fixture
def only_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan and allocate, but interpret no kernel: for tests of plans and layouts, which no value decides."""
    monkeypatch.setattr(Plan, "_interpret", lambda plan, tensors: None)


@pytest.fixture
def operator(spec: Spec) -> Operator[..., Any]:
    """Return the spec's operator as an `Operator`."""
    assert isinstance(spec.op, Operator)
    return spec.op


@pytest.fixture
def ordinary_case(spec: Spec) -> Case:
    """Return the second smallest case: the smallest is often a single element."""
    return _second_smallest(spec.name)


@pytest.fixture
def small_case(spec: Spec, ordinary_case: Case) -> Case:
    """Return the second smallest case, or a smaller version of it."""
    return ordinary_case.with_sizes(**SMALLER.get(spec.name, {}))


@pytest.fixture
def inputs(spec: Spec, small_case: Case) -> Inputs:
    """Return arguments in single precision that the interpreter computes in milliseconds."""
    torch.manual_seed(0)
    return spec.inputs(small_case, torch.float32, "cpu")


@cache
def _second_smallest(operator: str) -> Case:
    spec = SPECS[operator]
    return sorted(spec.cases, key=lambda case: _elements(spec, case))[:2][-1]


def _elements(spec: Spec, case: Case) -> int:
    made = spec.inputs(case, torch.float32, "meta").values()
    return sum(value.numel() for value in made if isinstance(value, torch.Tensor))
