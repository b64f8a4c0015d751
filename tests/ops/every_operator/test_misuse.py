"""A call with a wrong argument computes, or raises one sentence that names the operator and the argument."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from misuse import misuses
from torch import Tensor

import tilesmith as ts
from tilesmith.spec import Inputs, Spec


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_wrong_arguments_raise_one_sentence(spec: Spec, inputs: Inputs, route: Any) -> None:
    unclear = []
    for argument, what, arguments in misuses(spec, inputs):
        try:
            with ts.use(route), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spec.op(**arguments)
        except Exception as error:
            problem = _unclear(spec.name, arguments, error)
            if problem:
                unclear.append(f"{argument} {what}: {problem}")
    assert not unclear, "\n".join(unclear)


def _unclear(operator: str, arguments: Inputs, error: Exception) -> str:
    """Return why an error is unclear; nothing where it is clear."""
    text = str(error)
    if type(error) not in (TypeError, ValueError):
        return f"{type(error).__name__}: {text[:150]}"
    # Where two arguments do not go together, either may be named.
    if not text.startswith(f"{operator}: ") or not any(name in text for name in arguments):
        return f"names neither operator nor argument: {text[:150]}"
    return f"more than one sentence: {text}" if "\n" in text or len(text) > 700 else ""


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_a_subclass_without_behaviour_computes(route: Any) -> None:
    from misuse import Labelled

    x = torch.randn(3, 4).as_subclass(Labelled)
    with ts.use(route):
        torch.testing.assert_close(ts.ops.softmax(x).as_subclass(Tensor), x.as_subclass(Tensor).softmax(-1))
