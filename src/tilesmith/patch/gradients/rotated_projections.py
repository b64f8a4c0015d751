"""q, k and v of attention as one function: three linear layers of one input, and the rotation of q and k.

As functions of their own, the views, the transpositions and the rotation are seven more nodes of autograd's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tilesmith.ops.rms_norm_rope import rms_norm_rope
from tilesmith.ops.rms_norm_rope.plans import backward as normed_gradients
from tilesmith.ops.rope import rope
from tilesmith.ops.rope.plan import backward as rotated_back
from tilesmith.patch.gradients.plain_modules import applying
from tilesmith.patch.gradients.projections import linear, linear_gradients
from tilesmith.patch.gradients.second_order import differentiable_gradients, wants_graph


def _heads(projected: Sequence[Tensor], head_size: int) -> list[Tensor]:
    """Return q, k and v as [batch, heads, positions, head size]."""
    shape = (*projected[0].shape[:-1], -1, head_size)
    return [one.view(shape).transpose(1, 2) for one in projected]


def _in_pytorch(
    x: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None,
    head_size: int, eps: float, *parameters: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    projected = [F.linear(x, *parameters[place : place + 2]) for place in (0, 2, 4)]
    q, k, v = _heads(projected, head_size)
    if q_weight is None:
        return *rope.native(q, k, cos, sin), v
    return *rms_norm_rope.native(q, k, q_weight, k_weight, cos, sin, eps), v


def _forward(
    context: Any, x: Tensor, cos: Tensor, sin: Tensor, q_weight: Any, k_weight: Any,
    head_size: int, eps: float, *parameters: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    projected = [linear(x, *parameters[place : place + 2]) for place in (0, 2, 4)]
    q, k, v = _heads(projected, head_size)
    kept = () if q_weight is None else (q, k)
    context.save_for_backward(x, cos, sin, q_weight, k_weight, *parameters, *kept)
    context.numbers = head_size, eps
    context.set_materialize_grads(False)  # an unused result has no gradient
    if q_weight is None:
        q, k = rope(q, k, cos, sin)
    else:
        q, k = rms_norm_rope(q, k, q_weight, k_weight, cos, sin, eps)
    return q, k, v


def _backward(context: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None) -> tuple[Tensor | None, ...]:
    x, cos, sin, q_weight, k_weight, *rest = context.saved_tensors
    parameters, needed = rest[:6], context.needs_input_grad
    if wants_graph():
        inputs = (x, cos, sin, q_weight, k_weight, *context.numbers, *parameters)
        return differentiable_gradients(_in_pytorch, inputs, needed, (dq, dk, dv))
    dq_weight, dk_weight = None, None
    if q_weight is None and (dq is not None or dk is not None):  # the kernel rotates two tensors
        both = rotated_back(dk if dq is None else dq, dq if dk is None else dk, cos, sin, False, cos.shape[-1])
        dq, dk = None if dq is None else both[0], None if dk is None else both[1]
    if q_weight is not None and dq is not None:
        dq, dq_weight = normed_gradients(dq, rest[6], q_weight, cos, sin, context.numbers[1])
    if q_weight is not None and dk is not None:
        dk, dk_weight = normed_gradients(dk, rest[7], k_weight, cos, sin, context.numbers[1])
    gradients = [None if one is None else one.transpose(1, 2).flatten(2) for one in (dq, dk, dv)]
    dx, dparameters = linear_gradients(x, parameters[::2], gradients, (needed[0], *needed[7:]))
    return dx, None, None, dq_weight, dk_weight, None, None, *dparameters


class _Rotated(Function):
    """q, k and v. The weights of the norms of q and k may be None; the parameters are weight and bias of each layer."""

    forward, backward = staticmethod(_forward), staticmethod(_backward)  # type: ignore[assignment]  # three gradients


class _RotatedByPositions(Function):
    """The same with positions before heads, as the memory has them. A tracer copies gradients of any other layout."""

    @staticmethod
    def forward(context: Any, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(one.transpose(1, 2) for one in _forward(context, *arguments))

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dq, dk, dv = [None if one is None else one.transpose(1, 2) for one in gradients]
        return _backward(context, dq, dk, dv)


_rotated, _rotated_by_positions = applying(_Rotated), applying(_RotatedByPositions)


def rotated(*arguments: Any) -> tuple[Tensor, ...]:
    """Return rotated q, rotated k, and v, [batch, heads, positions, head size] each. Arguments: those of `_Rotated`."""
    if torch.compiler.is_compiling():  # eagerly, the transpositions would be three more nodes of autograd's
        q, k, v = _rotated_by_positions(*arguments)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    found: tuple[Tensor, ...] = _rotated(*arguments)
    return found
