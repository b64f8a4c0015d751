"""Which modules may be computed together with others, without being called: those that are exactly their formula."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as every_module

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.operator import only_pytorch_understands

FORWARD = "_tilesmith_forward"
"""The attribute of a patched module that holds our forward."""
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
    return type(module) is nn.Linear and _is_plain(module)


def linear_weight(module: Any) -> Tensor | None:
    """Return the weight [outputs, inputs] of a linear layer of torch, or of GPT-2's; None for any other module."""
    if is_linear(module):
        weight: Tensor = module.weight
        return weight
    # transformers' Conv1D is a linear layer with a transposed weight.
    is_transposed = type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
    return module.weight.t() if is_transposed and _is_plain(module) else None


def _is_plain(module: Any) -> bool:
    """Return whether a layer has no forward of its own, no hooks, and plain parameters."""
    if "forward" in vars(module) or has_hooks(module):
        return False
    return type(module.weight) in PLAIN and (module.bias is None or type(module.bias) in PLAIN)


def kernels_can_take(*tensors: Tensor) -> bool:
    """Return whether an autograd function around our kernels may take these tensors."""
    return dispatch.kernels_can_run(tensors[0]) and not only_pytorch_understands(tensors)
