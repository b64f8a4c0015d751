"""A call with a wrong argument computes, or raises one sentence that names the operator and the argument."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from misuse import Labelled, misuses, unclear
from tilesmith.spec import Inputs, Spec


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_wrong_arguments_raise_one_sentence(spec: Spec, inputs: Inputs, route: Any) -> None:
    problems = []
    for argument, what, arguments in misuses(spec, inputs):
        try:
            with ts.use(route), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spec.op(**arguments)
        except Exception as error:
            problem = unclear(spec.name, arguments, error)
            if problem:
                problems.append(f"{argument} {what}: {problem}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_a_subclass_without_behaviour_computes(route: Any) -> None:
    x = torch.randn(3, 4).as_subclass(Labelled)
    with ts.use(route):
        torch.testing.assert_close(ts.ops.softmax(x).as_subclass(Tensor), x.as_subclass(Tensor).softmax(-1))
