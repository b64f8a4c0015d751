"""Norms of float16 values whose squares leave float16's range: computed in single precision on both routes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts


@pytest.mark.parametrize("route", ["interpret", "torch"])
@pytest.mark.parametrize("operator", [ts.ops.rms_norm, ts.ops.rms_norm_relu, ts.ops.layer_norm])
def test_norm_with_a_weight_of_another_dtype(operator: Any, route: Any) -> None:
    x, weight = (torch.randn(3, 8) * 1000).half(), torch.randn(8)
    with ts.use(route):
        torch.testing.assert_close(operator(x, weight).float(), operator(x.float(), weight), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_rms_norm_rope_and_the_gradients_of_its_tables(route: Any) -> None:
    torch.manual_seed(0)
    q, k, angle = torch.randn(1, 2, 3, 4) * 1000, torch.randn(1, 1, 3, 4) * 1000, torch.randn(3, 4)

    def results(q: Tensor, k: Tensor) -> list[Tensor]:
        cos, sin = angle.cos().requires_grad_(), angle.sin().requires_grad_()
        with ts.use(route):
            outputs = ts.ops.rms_norm_rope(q, k, torch.ones(4).to(q), torch.ones(4).to(q), cos, sin)
        gradients = torch.autograd.grad([one.float().sin().sum() for one in outputs], [cos, sin])
        return [one.float() for one in (*outputs, *gradients)]

    halves = q.half(), k.half()
    right = results(*(one.float() for one in halves))
    torch.testing.assert_close(results(*halves), right, rtol=1e-2, atol=1e-2)
