"""Feed-forward blocks: down(silu(gate(x)) · up(x)).

Training does not keep silu(gate) · up for the gradient of `down`: the backward reads gate and up anyway and computes
the product again. A layer of Llama 1B keeps 18.5 times its hidden states otherwise; this saves 4 of them.

Where `ops/swiglu/gated_products.py` has kernels, the elementwise work runs in the GEMMs' epilogues, forward
and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tilesmith.ops.swiglu import gated_products as gated
from tilesmith.ops.swiglu.operator import backward_with_output, swiglu
from tilesmith.patch.gradients.plain_modules import kernels_can_take
from tilesmith.patch.gradients.projections import joined_operands, linear, linear_gradients, projections
from tilesmith.patch.gradients.second_order import differentiable_gradients
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in


def require_known_block(forward: Callable[..., Any]) -> None:
    """Raise UnknownCodeError where a block's `forward` uses other attributes than the formula above."""
    if names_in(forward) != {"act_fn", "gate_proj", "up_proj", "down_proj"}:
        raise UnknownCodeError.of(forward)


def joined_feed_forward(self: Any, hidden_states: Tensor) -> Tensor:
    """Compute a block whose gate and up are one layer."""
    result: Tensor = self.down_proj(swiglu(*projections(hidden_states, self.gate_up_proj)))
    return result


def block_forward(forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return the replacement for a block's `forward`; UnknownCodeError where it is written in another way."""
    if names_in(forward) == {"activation_fn", "gate_up_proj", "chunk", "down_proj"}:
        return joined_feed_forward
    require_known_block(forward)
    return feed_forward


def feed_forward(self: Any, x: Tensor) -> Tensor:
    operands = joined_operands(x, self.gate_proj, self.up_proj, self.down_proj) if kernels_can_take(x) else None
    result: Tensor
    if operands is None:
        result = self.down_proj(swiglu(*projections(x, self.gate_proj, self.up_proj)))
    else:
        result = _FeedForward.apply(*operands)  # type: ignore[no-untyped-call]  # PyTorch leaves apply untyped
    return result


def _in_pytorch(
    x: Tensor, gate_weight: Tensor, gate_bias: Tensor | None, up_weight: Tensor, up_bias: Tensor | None,
    down_weight: Tensor, down_bias: Tensor | None,
) -> tuple[Tensor]:  # fmt: skip
    hidden = F.silu(F.linear(x, gate_weight, gate_bias)) * F.linear(x, up_weight, up_bias)
    return (F.linear(hidden, down_weight, down_bias),)


class _FeedForward(Function):
    """A feed-forward block; its arguments are x, and weight and bias of gate, up and down."""

    @staticmethod
    def forward(context: Any, x: Tensor, *parameters: Any) -> Tensor:
        gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias = parameters
        rows = x.reshape(-1, x.shape[-1])
        if gate_bias is None and up_bias is None and gated.suits_forward(rows, gate_weight, up_weight):
            wide = (*x.shape[:-1], gate_weight.shape[0])
            gate, up, hidden = (one.view(wide) for one in gated.forward(rows, gate_weight, up_weight))
        else:
            gate, up = linear(x, gate_weight, gate_bias), linear(x, up_weight, up_bias)
            hidden = swiglu(gate, up)
        context.save_for_backward(x, gate, up, *parameters)
        return linear(hidden, down_weight, down_bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, *parameters = context.saved_tensors
        needed = context.needs_input_grad
        if torch.is_grad_enabled():
            return differentiable_gradients(_in_pytorch, (x, *parameters), needed, (gradient,))
        gate_weight, _, up_weight, _, down_weight, _ = parameters
        dgate, dup, hidden = _gate_gradients(gradient, down_weight, gate, up)
        _, of_down = linear_gradients(hidden, [down_weight], [gradient], (False, *needed[5:]))
        del hidden
        dx, of_gate_and_up = linear_gradients(x, [gate_weight, up_weight], [dgate, dup], needed[:5])
        return dx, *of_gate_and_up, *of_down


def _gate_gradients(dy: Tensor, down_weight: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up, and silu(gate) · up."""
    rows, gate_rows, up_rows = (one.reshape(-1, one.shape[-1]) for one in (dy, gate, up))
    if gated.suits_backward(rows, down_weight, gate_rows, up_rows):
        dgate, dup, hidden = gated.backward(rows, down_weight, gate_rows, up_rows)
    else:
        dgate, dup, hidden = backward_with_output(dy.matmul(down_weight), gate, up)
    return dgate.view(gate.shape), dup.view(gate.shape), hidden.view(gate.shape)
