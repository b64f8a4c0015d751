"""Tensors that PyTorch negates lazily, as a conjugate's imaginary part, and empty tensors with odd strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tilesmith as ts


def _lazily_negated(values: Tensor) -> Tensor:
    negated = torch.complex(torch.zeros_like(values), -values).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(negated, values)
    return negated


def test_gradient_of_linear_cross_entropy_reads_a_lazily_negated_cotangent() -> None:
    torch.manual_seed(0)
    for rows in (3, 5):  # the second call must not take the plan of the first
        weight, target = torch.randn(7, 4), torch.arange(rows)
        of_both: list[Any] = []
        for cotangent in (torch.randn(rows), None):
            cotangent = _lazily_negated(of_both[0][1]) if cotangent is None else cotangent
            hidden = torch.linspace(-1, 1, rows * 4).view(rows, 4).requires_grad_()
            with ts.use("interpret"):
                ts.ops.linear_cross_entropy(hidden, weight, target, reduction="none").backward(cotangent)  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
            of_both.append((hidden.grad, cotangent))
        torch.testing.assert_close(of_both[1][0], of_both[0][0])


def test_empty_pairs_with_odd_strides_are_computed() -> None:
    spec = ts.ops.SPECS["triangle_multiply"]
    inputs = spec.inputs(spec.cases[0], torch.float32, "cpu") | {"mask": None}
    channels = inputs["z"].shape[-1]
    inputs["z"] = torch.zeros(2, 2, 2, 2 * channels)[:0, ..., ::2].requires_grad_()
    with ts.use("interpret"):
        made = ts.ops.triangle_multiply(**inputs)
        made.backward(torch.zeros(2, 2, 2, 2 * channels)[:0, ..., ::2])  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
    assert made.shape == inputs["z"].shape == inputs["z"].grad.shape
