"""Feed-forward blocks: down(act(gate(x)) · up(x)) and down(act(up(x))), with SiLU or GELU as the activation.

Training does not keep the input of `down` for its gradient: the backward reads gate and up anyway and computes the
hidden units again. A layer of Llama 1B keeps 18.5 times its hidden states otherwise; this saves 4 of them.

Where `ops/swiglu/gated_products.py` has kernels, the elementwise work runs in the GEMMs' epilogues, forward
and backward.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from tilesmith.ops.geglu import backward_with_output as geglu_backward
from tilesmith.ops.geglu import geglu
from tilesmith.ops.gelu import backward_with_output as gelu_backward
from tilesmith.ops.gelu import gelu
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.swiglu import gated_products as gated
from tilesmith.ops.swiglu.operator import backward_with_output as swiglu_backward
from tilesmith.ops.swiglu.operator import swiglu
from tilesmith.patch.gradients.plain_modules import applying, has_hooks, kernels_can_take, linear_weight
from tilesmith.patch.gradients.projections import joined_operands, linear, linear_gradients, projections
from tilesmith.patch.gradients.second_order import differentiable_gradients, wants_graph
from tilesmith.patch.parts.trials import ACTIVATIONS, Shape, activation_form, computes_the_same, reads_numbers
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in

APPROXIMATE = {"gelu": "none", "gelu_tanh": "tanh"}
"""The argument `approximate` of GELU for each activation that is one."""

LLAMA = ("gate_proj", "up_proj", "down_proj")
PACKED = (
    ({"activation_fn", "gate_up_proj", "chunk", "down_proj"}, ("gate_up_proj", "down_proj"), "activation_fn", None),
    ({"Wi", "chunk", "Wo", "drop", "act"}, ("Wi", "Wo"), "act", "drop"),
)
PLAIN = (
    ({"c_fc", "act", "c_proj", "dropout"}, ("c_fc", "c_proj"), "act", "dropout"),
    ({"dense_h_to_4h", "act", "dense_4h_to_h"}, ("dense_h_to_4h", "dense_4h_to_h"), "act", None),
    ({"fc1", "activation_fn", "fc2"}, ("fc1", "fc2"), "activation_fn", None),
    ({"up_proj", "act_fn", "down_proj"}, ("up_proj", "down_proj"), "act_fn", None),
    (
        {"c_fc", "act", "c_proj", "nn", "functional", "dropout", "residual_dropout", "training"},
        ("c_fc", "c_proj"), "act", "residual_dropout",
    ),
)  # fmt: skip
"""How blocks are written: the names their `forward` uses, both layers, the activation, and the dropout.

A PACKED block has gate and up in one layer, and drops hidden units; a PLAIN one has no gate, and drops results. The
dropout is a module or a number.
"""


def block_forward(forward: Callable[..., Any], block: Any) -> Callable[..., Tensor] | str:
    """Return the replacement for the `forward` of a block, or why there is none.

    Raise UnknownCodeError where the block is written in another way or computes something else.
    """
    used = names_in(forward)
    for activation in ("act_fn", "activation_fn"):
        if used == {*LLAMA, activation}:
            shape = Shape(LLAMA, activation, None)
            return _or_reason(forward, block, shape, functools.partial(gated_block, LLAMA))
    for ways, make in ((PACKED, packed_block), (PLAIN, plain_block)):
        for names, layers, activation, dropout in ways:
            if used == names:
                shape = Shape(layers, activation, dropout)
                return _or_reason(forward, block, shape, functools.partial(make, layers, dropout))
    raise UnknownCodeError.of(forward)


def recognised_block(block: Any) -> Callable[..., Tensor] | None:
    """Return the replacement for the `forward` of a block with any names; None where the module is no such block.

    A block has two or three linear layers, perhaps an activation and a dropout, and nothing else. Every form is tried.
    """
    forward, children = type(block).forward, dict(block.named_children())
    names = [name for name, one in children.items() if linear_weight(one) is not None]
    if len(names) not in (2, 3) or not set(names) <= names_in(forward) or reads_numbers(block):
        return None
    drops = [name for name, one in children.items() if isinstance(one, nn.Dropout)]
    if len(drops) > 1:
        return None
    dropout = drops[0] if drops else None
    owned = {parameter for name in names for parameter in children[name].parameters()}
    if {*block.parameters(), *block.buffers()} != owned:
        return None
    for layers in itertools.permutations(names):
        for activation in ACTIVATIONS:
            gated = len(layers) == 3
            forms = [gated_block(layers, activation, dropout)] if gated else [
                packed_block(layers, dropout, activation), plain_block(layers, dropout, activation),
            ]  # fmt: skip
            for ours in forms:
                if computes_the_same(ours, forward, block, Shape(layers, "", dropout)):
                    return ours
    return None


def _or_reason(
    forward: Callable[..., Any], block: Any, shape: Shape, make: Callable[[str], Callable[..., Tensor]]
) -> Callable[..., Tensor] | str:
    function = getattr(block, shape.activation)
    activation = activation_form(function)
    if activation is None:
        name = getattr(function, "__name__", type(function).__name__)
        return f"have the activation {name}, and the operators SiLU and GELU only"
    ours = make(activation)
    if not computes_the_same(ours, forward, block, shape):
        raise UnknownCodeError(f"{type(block).__name__} computes something else than a feed-forward block")
    return ours


def _gated(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    hidden: Tensor = swiglu(gate, up) if activation == "silu" else geglu(gate, up, APPROXIMATE[activation])
    return hidden


@functools.cache
def gated_block(layers: tuple[str, str, str], activation: str, dropout: str | None = None) -> Callable[..., Tensor]:
    """Return the `forward` of a block with gate, up and down, which drops results."""

    def forward(self: Any, x: Tensor) -> Tensor:
        first, second, last = (getattr(self, name) for name in layers)
        operands = joined_operands(x, first, second, last) if kernels_can_take(x) else None
        result: Tensor
        if operands is None:
            gate, up = projections(x, first, second)
            result = last(_gated(gate, up, activation))
        else:
            result = _gated_together(activation, *operands)
        return _dropped(self, dropout, result)

    return forward


feed_forward = gated_block(LLAMA, "silu")
"""The `forward` of Llama's block."""


def packed_block(layers: tuple[str, str], dropout: str | None, activation: str) -> Callable[..., Tensor]:
    """Return the `forward` of a block whose gate and up are one layer."""
    first, last = layers

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        (both,) = projections(hidden_states, getattr(self, first))
        hidden = _gated(both, None, activation)
        result: Tensor = getattr(self, last)(_dropped(self, dropout, hidden))
        return result

    return forward


def plain_block(layers: tuple[str, str], dropout: str | None, activation: str) -> Callable[..., Tensor]:
    """Return the `forward` of a block without a gate."""
    first, last = layers

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        up, down = getattr(self, first), getattr(self, last)
        can_join = activation in APPROXIMATE and kernels_can_take(hidden_states)
        operands = joined_operands(hidden_states, up, down) if can_join else None
        if operands is not None:
            result: Tensor = _plain_together(APPROXIMATE[activation], *operands)
        elif activation in APPROXIMATE:
            (wide,) = projections(hidden_states, up)
            result = down(gelu(wide, APPROXIMATE[activation]))
        else:
            result = down(F.silu(up(hidden_states)))
        return _dropped(self, dropout, result)

    return forward


def _dropped(block: Any, dropout: str | None, x: Tensor) -> Tensor:
    drop = None if dropout is None else getattr(block, dropout)
    if drop is None or (type(drop) is nn.Dropout and not (drop.p and drop.training) and not has_hooks(drop)):
        return x
    return F.dropout(x, drop, block.training) if isinstance(drop, float | int) else drop(x)


def _gated_in_pytorch(activation: str, x: Tensor, *parameters: Any) -> tuple[Tensor]:
    gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias = parameters
    gate, up = F.linear(x, gate_weight, gate_bias), F.linear(x, up_weight, up_bias)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate=APPROXIMATE[activation])
    return (F.linear(active * up, down_weight, down_bias),)


# Both are torch operators, so a compiled graph has the same kernels, chosen when it runs.


@kernels("feed_forward_gate_and_up")
def gate_and_up(
    x: Tensor, gate_weight: Tensor, gate_bias: Tensor | None, up_weight: Tensor, up_bias: Tensor | None,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gate, up and the hidden units."""
    shape = (*x.shape[:-1], gate_weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape)


@gate_and_up.composed
def compute_gate_and_up(
    x: Tensor, gate_weight: Tensor, gate_bias: Tensor | None, up_weight: Tensor, up_bias: Tensor | None,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows = x.reshape(-1, x.shape[-1])
    can_fuse = gate_bias is None and up_bias is None and activation in gated.FORWARD
    if can_fuse and gated.suits_forward(rows, gate_weight, up_weight):
        wide = (*x.shape[:-1], gate_weight.shape[0])
        gate, up, hidden = (one.view(wide) for one in gated.forward(rows, gate_weight, up_weight, activation))
    else:
        gate, up = linear(x, gate_weight, gate_bias), linear(x, up_weight, up_bias)
        hidden = _gated(gate, up, activation)
    return gate, up, hidden


@kernels("feed_forward_gate_gradients")
def gate_gradients(
    dy: Tensor, down_weight: Tensor, gate: Tensor, up: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up, and the hidden units."""
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape), gate.new_empty(gate.shape)


@gate_gradients.composed
def compute_gate_gradients(
    dy: Tensor, down_weight: Tensor, gate: Tensor, up: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    rows, gate_rows, up_rows = (one.reshape(-1, one.shape[-1]) for one in (dy, gate, up))
    if activation in gated.BACKWARD and gated.suits_backward(rows, down_weight, gate_rows, up_rows):
        dgate, dup, hidden = gated.backward(rows, down_weight, gate_rows, up_rows, activation)
    elif activation == "silu":
        dgate, dup, hidden = swiglu_backward(dy.matmul(down_weight), gate, up)
    else:
        dgate, dup, hidden = geglu_backward(dy.matmul(down_weight), gate, up, APPROXIMATE[activation])
    return dgate.view(gate.shape), dup.view(gate.shape), hidden.view(gate.shape)


class _Gated(Function):
    """A feed-forward block; its arguments are the activation, x, and weight and bias of gate, up and down."""

    @staticmethod
    def forward(context: Any, activation: str, x: Tensor, *parameters: Any) -> Tensor:
        *first_parameters, down_weight, down_bias = parameters
        gate, up, hidden = gate_and_up(x, *first_parameters, activation)
        context.activation = activation
        context.save_for_backward(x, gate, up, *parameters)
        return linear(hidden, down_weight, down_bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, *parameters = context.saved_tensors
        needed = context.needs_input_grad[1:]
        if wants_graph():
            in_pytorch = functools.partial(_gated_in_pytorch, context.activation)
            return None, *differentiable_gradients(in_pytorch, (x, *parameters), needed, (gradient,))
        gate_weight, _, up_weight, _, down_weight, _ = parameters
        dgate, dup, hidden = gate_gradients(gradient, down_weight, gate, up, context.activation)
        _, of_down = linear_gradients(hidden, [down_weight], [gradient], (False, *needed[5:]))
        del hidden
        dx, of_gate_and_up = linear_gradients(x, [gate_weight, up_weight], [dgate, dup], needed[:5])
        return None, dx, *of_gate_and_up, *of_down


_gated_together = applying(_Gated)


def _plain_in_pytorch(approximate: str, x: Tensor, *parameters: Any) -> tuple[Tensor]:
    up_weight, up_bias, down_weight, down_bias = parameters
    return (F.linear(F.gelu(F.linear(x, up_weight, up_bias), approximate=approximate), down_weight, down_bias),)


class _Plain(Function):
    """A block without a gate; its arguments are GELU's approximation, x, and weight and bias of up and down."""

    @staticmethod
    def forward(context: Any, approximate: str, x: Tensor, *parameters: Any) -> Tensor:
        up_weight, up_bias, down_weight, down_bias = parameters
        up = linear(x, up_weight, up_bias)
        context.approximate = approximate
        context.save_for_backward(x, up, *parameters)
        return linear(gelu(up, approximate), down_weight, down_bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, up, *parameters = context.saved_tensors
        needed = context.needs_input_grad[1:]
        if wants_graph():
            in_pytorch = functools.partial(_plain_in_pytorch, context.approximate)
            return None, *differentiable_gradients(in_pytorch, (x, *parameters), needed, (gradient,))
        up_weight, _, down_weight, _ = parameters
        dup, hidden = gelu_backward(gradient.matmul(down_weight), up, context.approximate)
        _, of_down = linear_gradients(hidden, [down_weight], [gradient], (False, *needed[3:]))
        del hidden
        dx, of_up = linear_gradients(x, [up_weight], [dup], needed[:3])
        return None, dx, *of_up, *of_down


_plain_together = applying(_Plain)
