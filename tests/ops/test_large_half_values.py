"""float16 values whose products leave float16's range: computed in single precision on both routes."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_scores_of_attention(route: Any) -> None:
    torch.manual_seed(0)
    q, k, v = ((torch.randn(1, 3, 3, 2, 5) * 1000).half() for _ in range(3))
    starts = torch.tensor([0, 1, 3], dtype=torch.int32)
    calls: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "attention": lambda q, k, v: ts.ops.attention(q[0], k[0], v[0], bias=torch.zeros(2, 2).to(q)),
        "attention_varlen": lambda q, k, v: ts.ops.attention_varlen(q[0, 0], k[0, 0], v[0, 0], starts),
        "msa_row_attention": ts.ops.msa_row_attention,
        "msa_column_attention": ts.ops.msa_column_attention,
        "triangle_attention": ts.ops.triangle_attention,
    }
    for name, call in calls.items():
        with ts.use(route):
            found, right = call(q, k, v), call(q.double(), k.double(), v.double())
        torch.testing.assert_close(found.double(), right, rtol=2e-2, atol=10.0, msg=name)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_gradients_of_a_product_whose_activation_leaves_the_range(activation: str) -> None:
    # a · b is −90000, 90000 and 8, of which float16 holds the last only; the slopes are 0, 1 and 1. PyTorch has NaN.
    a, b = torch.full((1, 9), 100.0).half().requires_grad_(), torch.zeros(9, 3).half()
    b[:, 0], b[:, 1], b[0, 2] = -100.0, 100.0, 0.08
    with ts.use("interpret"):
        y = ts.ops.matmul(a, b, activation=activation)
        (gradient,) = torch.autograd.grad(y, a, torch.tensor([[1.0, 1.0, 0.0]]).half())
    assert gradient.tolist() == [[100.0] * 9]


def test_gradient_of_the_weight_of_outer_products() -> None:
    # The products are ±1e6 and ±2e6. Their sums with small cotangents are about 500.
    torch.manual_seed(0)
    a, b = ((torch.randn(1, 2, 2, 3).sign() * size).half() for size in (1000, 2000))
    weight, dz = torch.randn(1, 9).half(), torch.randn(1, 2, 2, 1).half() * 1e-3

    def gradient(dtype: torch.dtype) -> Tensor:
        leaf = weight.to(dtype).requires_grad_()
        z = ts.ops.outer_product_mean(a.to(dtype), b.to(dtype), weight=leaf)
        return torch.autograd.grad(z, leaf, dz.to(dtype))[0].double()

    with ts.use("interpret"):
        torch.testing.assert_close(gradient(torch.float16), gradient(torch.float64), rtol=5e-3, atol=5.0)
