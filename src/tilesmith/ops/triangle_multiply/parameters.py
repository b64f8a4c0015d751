"""The parameters of triangle multiplication as one named tuple, and their gradients.

The tuple holds tensors in a call, operands in a plan and gradients in a backward. `flat_arguments` derives the torch
operators' schemas from the tuple.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torch import Tensor
from typing_extensions import NamedTuple  # of typing's, Python 3.10 has no generic ones

Value = TypeVar("Value")


class Parameters(NamedTuple, Generic[Value]):
    """Each bias beside its weight. Only the biases of projections and gates may be missing."""

    norm_weight: Value  # [channels]
    norm_bias: Value  # [channels]
    projection_weight: Value  # [2 · hidden, channels]: the rows for a, then the rows for b
    projection_bias: Value | None  # [2 · hidden]
    gate_weight: Value  # [2 · hidden, channels]: the rows for a, then the rows for b
    gate_bias: Value | None  # [2 · hidden]
    output_norm_weight: Value  # [hidden]
    output_norm_bias: Value  # [hidden]
    output_weight: Value  # [channels, hidden]
    output_bias: Value | None  # [channels]
    output_gate_weight: Value  # [channels, channels]
    output_gate_bias: Value | None  # [channels]


OPTIONAL = ("projection_bias", "gate_bias", "output_bias", "output_gate_bias")
INPUTS = ("z", "mask", *Parameters._fields)  # of every forward; numbers follow

STACKED = ("projection", "gate", "output_gate")  # layers that take zn; their weights are stacked in this order
VECTORS = (
    "output_norm_weight", "output_norm_bias", "output_bias", "output_gate_bias",
    "norm_weight", "norm_bias", "projection_bias", "gate_bias",
)  # fmt: skip
"""The order in which a backward concatenates the gradients of all vectors."""


def shapes(channels: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by name."""
    weights = {
        "norm": (channels,), "projection": (2 * hidden, channels), "gate": (2 * hidden, channels),
        "output_norm": (hidden,), "output": (channels, hidden), "output_gate": (channels, channels),
    }  # fmt: skip
    both = {f"{layer}_weight": shape for layer, shape in weights.items()}
    both |= {f"{layer}_bias": shape[:1] for layer, shape in weights.items()}
    return {name: both[name] for name in Parameters._fields}


def split_gradients(dweights: Tensor, doutput_weight: Tensor, dvectors: Tensor) -> Parameters[Tensor]:
    """Return the gradient of each parameter from the three tensors that a backward leaves.

    - `dweights`, [4 · hidden + channels, channels]: the weights of the STACKED layers;
    - `doutput_weight`, [channels, hidden];
    - `dvectors`, [6 · hidden + 4 · channels]: the VECTORS.
    """
    sizes = {name: shape[0] for name, shape in shapes(*doutput_weight.shape).items()}
    stacked = [f"{layer}_weight" for layer in STACKED]
    weights = dict(zip(stacked, dweights.split([sizes[name] for name in stacked]), strict=True))
    vectors = dict(zip(VECTORS, dvectors.split([sizes[name] for name in VECTORS]), strict=True))
    return Parameters(**weights, **vectors, output_weight=doutput_weight)


def gradients_of_inputs(context: Any, dz: Tensor, dparameters: Parameters[Tensor]) -> tuple[Tensor | None, ...]:
    """Return one gradient for each input of a forward, None for inputs that need none.

    `context.numbers` holds the inputs that follow INPUTS.
    """
    found = {"z": dz, **dparameters._asdict()}
    wanted = zip(INPUTS, context.needs_input_grad, strict=False)  # numbers follow
    return *(found.get(name) if is_wanted else None for name, is_wanted in wanted), *_none_for_numbers(context)


def no_gradients(context: Any) -> tuple[None, ...]:
    """Return None for each input of a forward: the loss does not depend on the output."""
    return *(None for _ in INPUTS), *_none_for_numbers(context)


def _none_for_numbers(context: Any) -> tuple[None, ...]:
    return tuple(None for _ in context.numbers)
