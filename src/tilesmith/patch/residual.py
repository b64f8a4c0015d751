"""The sum of a block's result and its input, and the norm that follows: one pass instead of two, forward and backward.

In a decoder layer x goes into a norm and past it. PyTorch adds the two gradients that come back in a pass of its own;
the norm's backward can add the one that went past while it has the other in registers. Where x is the sum of a block's
input and its result, the norm's forward adds it up as well. Hidden states between layers stay what they are, for hooks,
checkpoints and `output_hidden_states`: the sum at the end of a layer is made there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tilesmith.ops.add_rms_norm import add_rms_norm
from tilesmith.ops.add_rms_norm import backward as gradients_of_sum
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rms_norm.operator import native
from tilesmith.patch.bare import goes_to_kernels, has_hooks
from tilesmith.patch.gradients import by_pytorch
from tilesmith.patch.parts import SCALES
from tilesmith.patch.rewriting import rewritten

SUM_AND_NORM = (
    r"hidden_states = residual \+ hidden_states\n *residual = hidden_states\n"
    r" *hidden_states = self\.(\w+)\(hidden_states\)"
)
NORM = r"residual = hidden_states\n *hidden_states = self\.(\w+)\(hidden_states\)"


@functools.cache
def with_joined_norms(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """A decoder layer's own `forward`, in which sums and norms are computed together; None where it has none such."""
    return rewritten(
        forward,
        {"norm_of_sum": norm_of_sum, "norm_and_input": norm_and_input},
        {
            SUM_AND_NORM: r"hidden_states, residual = norm_of_sum(self.\1, residual, hidden_states)",
            NORM: r"hidden_states, residual = norm_and_input(self.\1, hidden_states)",
        },
    )


def norm_of_sum(norm: Any, residual: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
    """norm(residual + branch), and that sum."""
    # The results have the residual's dtype, which is what PyTorch would give them only where it is the highest.
    dtype = torch.promote_types(torch.promote_types(residual.dtype, branch.dtype), norm.weight.dtype)
    if dtype != residual.dtype or not _is_ours(norm):
        return norm_and_input(norm, residual + branch)
    normal, total = add_rms_norm(residual, branch, *SCALES[norm.forward.__func__](norm))
    return normal, total


def norm_and_input(norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """norm(x), and x, whose gradients are added by the norm's backward."""
    if not torch.is_grad_enabled() or not x.requires_grad or not _is_ours(norm):
        return norm(x), x
    if not goes_to_kernels(x, norm.weight) or torch.promote_types(x.dtype, norm.weight.dtype) != x.dtype:
        return norm(x), x
    scale = SCALES[norm.forward.__func__](norm)
    normal, same = _NormAndInput.apply(x, *scale)  # type: ignore[no-untyped-call]  # as PyTorch leaves it
    return normal, same


def _is_ours(norm: Any) -> bool:
    """Whether a norm is one of ours, and nothing but a norm."""
    return getattr(vars(norm).get("forward"), "__func__", None) in SCALES and not has_hooks(norm)


class _NormAndInput(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        context.save_for_backward(x, weight)
        context.eps = eps
        context.set_materialize_grads(False)
        return rms_norm(x, weight, eps), x

    @staticmethod
    def backward(context: Any, dnormal: Tensor | None, dsame: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = context.saved_tensors
        needed = context.needs_input_grad
        if dnormal is None:
            return dsame, None, None
        if torch.is_grad_enabled():
            inputs = x, weight, context.eps
            return by_pytorch(lambda x, *scale: (native(x, *scale), x), inputs, needed, (dnormal, dsame))
        dx, dweight = gradients_of_sum(dnormal, dsame, x, weight, context.eps, needed[1])
        return dx, dweight if needed[1] else None, None
