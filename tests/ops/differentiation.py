"""Running an operator forward and backward, for tests that compare one way of calling it with another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.kernels import Kernels
from tilesmith.ops.runtime.operator import Operator
from tilesmith.spec import Inputs, called, is_differentiable


def leaves_of(inputs: Inputs) -> Inputs:
    """The same arguments with tensors of their own, those that can have a gradient asking for one."""
    return {
        name: value.detach().clone().requires_grad_(is_differentiable(value)) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def tensors_of(made: Any) -> list[Tensor]:
    """An operator gives one tensor or several."""
    return [made] if isinstance(made, Tensor) else list(made)


def forward_and_backward(function: Callable[..., Any], inputs: Inputs) -> dict[str, Tensor]:
    """Every output, and the gradient of every argument for cotangents that are the same at each call."""
    leaves = leaves_of(inputs)
    outputs = tensors_of(called(function, leaves))
    backward(outputs)
    found = {f"output {number}": output.detach() for number, output in enumerate(outputs)}
    return found | {f"gradient of {name}": value.grad for name, value in leaves.items() if is_differentiable(value)}


def backward(outputs: list[Tensor]) -> None:
    """Backward from cotangents that follow no pattern of the tensor's, and that a tracer sees being made."""
    torch.autograd.backward(outputs, [cotangent_of(output) for output in outputs])


def cotangent_of(output: Tensor) -> Tensor:
    """Never zero, which a wrong gradient would be as good as the right one for: not of a single number either."""
    return torch.arange(1, output.numel() + 1).mul(1.7).sin().view(output.shape).to(output)


def assert_same(ours: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Equal as far as rounding in another order lets them be."""
    torch.testing.assert_close(ours, right)


def forwards_of(operator: Operator[..., Any]) -> list[Kernels]:
    """Return the forward of an operator, and those of its alternatives."""
    return [operator.forward, *(one.forward for _, one in operator._alternatives)]
