"""Tensors in every layout that models produce, and a comparison of an operator with its reference on one of them."""

from __future__ import annotations

import torch
from differentiation import leaves_of, tensors_of
from torch import Tensor

from tilesmith.ops import SPECS
from tilesmith.spec import Inputs, is_differentiable


def views() -> dict[str, Tensor]:
    """Return layouts that models produce, and worse ones, by name."""
    random = torch.Generator().manual_seed(3)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    return {
        "transposed": made(6, 5).t(),
        "sliced rows": made(9, 6)[::2],
        "sliced columns": made(5, 12)[:, ::2],
        "a head of a packed tensor": made(2, 3, 3, 4, 6)[:, :, 1],
        "reversed order of dimensions": made(2, 3, 4, 5, 6).permute(4, 3, 2, 1, 0),
        "channels last": made(2, 6, 3, 4).to(memory_format=torch.channels_last),
        "channels last, rows along channels": made(2, 6, 3, 4)
        .to(memory_format=torch.channels_last)
        .permute(0, 2, 3, 1),
        "expanded rows": made(1, 6).expand(5, 6),
        "expanded columns": made(5, 1).expand(5, 6),
        "expanded in the middle": made(3, 1, 4).expand(3, 5, 4),
        "a single element expanded": made(1).expand(7),
        "four row dimensions that do not merge": made(2, 3, 2, 3, 8).permute(3, 2, 1, 0, 4)[..., :5],
        "gaps in every dimension": made(4, 4, 4, 4, 6)[::2, ::2, ::2, ::2, ::2],
        "six dimensions, shuffled": made(2, 3, 2, 3, 2, 4).permute(4, 1, 3, 0, 2, 5),
        "one dimension": made(33),
        "one dimension with gaps": made(33)[::3],
        "size one dimensions": made(1, 5, 1, 6, 1).permute(2, 3, 0, 1, 4),
        "overlapping windows": made(20).unfold(0, 6, 2),
    }


def assert_same_in_this_layout(operator: str, inputs: Inputs) -> None:
    """Compare result and gradients with the reference's, and the result's strides with torch.empty_like's."""
    spec = SPECS[operator]
    leaves = {key: value.detach() if isinstance(value, Tensor) else value for key, value in inputs.items()}
    for value in leaves.values():
        if is_differentiable(value):
            value.requires_grad_()
    (output,) = tensors_of(spec.op(**leaves))
    copies = leaves_of(inputs)
    (right,) = tensors_of(spec.reference(**copies))
    torch.testing.assert_close(output, right)
    assert output.stride() == torch.empty_like(inputs["x"]).stride()
    transposed = torch.randn(right.shape[::-1]).permute(*reversed(range(right.ndim)))
    for cotangent in (torch.randn(right.shape), transposed):
        ours = torch.autograd.grad(output, _differentiable(leaves), cotangent, retain_graph=True)
        rights = torch.autograd.grad(right, _differentiable(copies), cotangent, retain_graph=True)
        torch.testing.assert_close(ours, rights)


def _differentiable(inputs: Inputs) -> list[Tensor]:
    return [value for value in inputs.values() if is_differentiable(value)]
