"""A result of the first argument's shape has the layout of torch.empty_like of that argument, whoever computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiation import tensors_of
from torch import Tensor

import tilesmith as ts
from tilesmith.spec import LAYOUTS, Case, Spec

# Results of another shape, which may happen to be the first argument's.
OTHERWISE = {"avg_pool2d", "conv2d", "matmul", "max_pool2d", "outer_product_mean", "transpose"}


def _permuted(tensor: Tensor) -> Tensor:
    """Return the tensor with its middle dimensions exchanged in memory, as heads and positions of attention are."""
    if tensor.ndim < 3:
        return tensor
    return tensor.transpose(1, -2).contiguous().transpose(1, -2)


@pytest.mark.usefixtures("only_plans")
@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_layout_is_that_of_empty_like(spec: Spec, small_case: Case, route: Any) -> None:
    if spec.name in OTHERWISE:
        pytest.skip("the result has another shape")
    torch.manual_seed(2)
    for layout in (*(one.arrange for one in LAYOUTS), _permuted):
        inputs = spec.inputs(small_case, torch.float32, "cpu")
        inputs = {
            name: layout(one) if isinstance(one, Tensor) and one.ndim > 1 else one for name, one in inputs.items()
        }
        first = next(value for value in inputs.values() if isinstance(value, Tensor))
        for wants in (False, True):
            with ts.use(route):
                made = tensors_of(spec.op(**{**inputs, next(iter(inputs)): first.detach().requires_grad_(wants)}))
            if made[0].shape == first.shape:
                assert made[0].stride() == torch.empty_like(first).stride(), (layout, wants)


@pytest.mark.parametrize("route", ["interpret", "torch"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 4), (2, 1, 5, 1)])
def test_sizes_of_one_have_the_strides_too(shape: tuple[int, ...], route: Any) -> None:
    x = torch.randn(shape[::-1]).permute(3, 1, 2, 0)
    with ts.use(route):
        for made in (ts.ops.silu(x), ts.ops.softmax(x), ts.ops.rms_norm(x), ts.ops.add(x, x), ts.ops.gate(x, x)):
            assert made.stride() == torch.empty_like(x).stride()
