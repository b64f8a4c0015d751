"""Whether a module is no more than its formula: then it may be computed together with others, without being called."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.operator import only_pytorch_understands

PLAIN = (Tensor, nn.Parameter)
"""Classes of tensors that are what they look like."""


def has_hooks(module: nn.Module) -> bool:
    """Whether calling it does more than its `forward`, of its own or of every module."""
    # Spelled out, since it is asked of every projection and norm at every step.
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
    """Whether it is torch's own linear layer: no adapter, no quantised or sharded weight, no hooks."""
    if type(module) is not nn.Linear or "forward" in vars(module) or has_hooks(module):
        return False
    return type(module.weight) in PLAIN and (module.bias is None or type(module.bias) in PLAIN)


def goes_to_kernels(*tensors: Tensor) -> bool:
    """Whether an autograd function around our kernels may take these. Under torch.compile the operators are called one
    by one: its own passes join what lies between them."""
    return (
        not torch.compiler.is_compiling()
        and dispatch.kernels_can_run(tensors[0])
        and not only_pytorch_understands(tensors)
    )
