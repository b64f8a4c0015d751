"""Which modules may be computed together with others, without being called: those that are exactly their formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules import module as every_module

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.autograd import apply_plain
from tilesmith.ops.runtime.operator import only_pytorch_understands

PLAIN = (Tensor, nn.Parameter)
"""Tensor classes without behaviour of their own."""


def has_hooks(module: nn.Module) -> bool:
    """Return whether a hook, of this module or of all modules, runs when the module is called."""
    # One expression without a loop: every projection and norm asks at every step.
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
        or every_module._global_backward_hooks
        or every_module._global_backward_pre_hooks
    )


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is torch's own linear layer: no adapter, no quantised or sharded weight, no hooks."""
    return type(module) is nn.Linear and linear_parameters(module) is not None


def linear_parameters(module: Any) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight [outputs, inputs] and the bias of a linear layer of torch, or of GPT-2's.

    Return None for any other module, and where the layer has a forward of its own, hooks or other kinds of parameters.
    """
    kind = type(module)
    is_transposed = kind is not nn.Linear
    # transformers' Conv1D is a linear layer with a transposed weight.
    if is_transposed and (kind.__name__ != "Conv1D" or kind.__module__ != "transformers.pytorch_utils"):
        return None
    if "forward" in module.__dict__ or has_hooks(module):
        return None
    # Reading both once from the dictionary takes a fifth of the time of four reads as attributes.
    parameters = module._parameters
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if type(weight) not in PLAIN or (type(bias) not in PLAIN and (bias is not None or module.bias is not None)):
        return None
    return weight.t() if is_transposed else weight, bias


def linear_weight(module: Any) -> Tensor | None:
    """Return the weight [outputs, inputs] of a linear layer of torch, or of GPT-2's; None for any other module."""
    found = linear_parameters(module)
    return None if found is None else found[0]


def kernels_can_take(*tensors: Tensor) -> bool:
    """Return whether an autograd function around our kernels may take these tensors."""
    return dispatch.kernels_can_run(tensors[0]) and not only_pytorch_understands(tensors)


def applying(function: type[Function]) -> Callable[..., Any]:
    """Return `function.apply` for plain tensors outside of torch.func transforms, as `kernels_can_take` finds them."""
    plain = apply_plain(function)

    def apply(*arguments: Any) -> Any:
        traced: Any = function.apply
        return traced(*arguments) if torch.compiler.is_compiling() else plain(*arguments)

    return apply
