"""Trials on random numbers: whether activations and feed-forward blocks compute what our forms compute.

Names alone do not say what code computes. A block runs on small stand-ins of its layers, so a trial costs microseconds
and no copy of the block's weights.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.patch.gradients.tied_embedding import under_head
from tilesmith.patch.rewriting import names_in

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


class Shape(NamedTuple):
    """The names of a block's layers, the last of which returns the result, of its activation and of its dropout."""

    layers: tuple[str, ...]
    activation: str
    dropout: str | None


def activation_form(function: Any) -> str | None:
    """Return "silu", "gelu" or "gelu_tanh", whichever computes the same as this function; None where none does.

    An activation with parameters or buffers is none of these: it may change.
    """
    if isinstance(function, nn.Module) and [*function.parameters(), *function.buffers()]:
        return None
    far = torch.logspace(-2, 4, 40)
    x = torch.cat((torch.linspace(-8, 8, 161), far, -far)).requires_grad_(True)
    try:
        results = [_value_and_slope(one, x) for one in _in_both_modes(function)]
    except Exception:  # code of any kind
        return None
    for name, form in ACTIVATIONS.items():
        wanted = _value_and_slope(form, x)
        if all(torch.allclose(result, wanted, rtol=1e-5, atol=2e-6) for result in results):
            return name
    return None


def _value_and_slope(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = function(x)
        return torch.stack((y.detach(), *torch.autograd.grad(y.sum(), x)))


def _in_both_modes(function: Any) -> list[Any]:
    if not isinstance(function, nn.Module):
        return [function]
    return [copy.deepcopy(function).train(mode) for mode in (True, False)]


class StandIn:
    """A module with some of its attributes replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        vars(self).update(replaced, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)


def reads_numbers(module: Any) -> bool:
    """Return whether a module's `forward` uses a number or a tensor of the module that is no parameter or epsilon.

    Such a number may change after a trial.
    """
    used = names_in(type(module).forward)
    others = (one for name, one in vars(module).items() if name in used and "eps" not in name)
    return any(isinstance(one, float | Tensor) for one in others)


def computes_the_same(ours: Callable[..., Tensor], theirs: Callable[..., Any], block: Any, shape: Shape) -> bool:
    """Return whether two `forward`s of a block have the same result and gradients on small layers.

    The numbers are usual and large, in training and evaluation, in single precision and in bfloat16.
    """
    if len(inspect.signature(theirs).parameters) != 2:
        return False
    generator = torch.Generator().manual_seed(0)
    *first, last = shape.layers
    packed = 1 + (len(first) == 1 and "chunk" in names_in(theirs))
    rest = {name: one for name, one in getattr(block, "_modules", {}).items() if name not in shape.layers}
    for training, scale, dtype in (
        (True, 1.0, torch.float32), (False, 1.0, torch.float32), (False, 100.0, torch.float32),
        (False, 1.0, torch.bfloat16),
    ):  # fmt: skip
        layers = {name: _layer(5, 6 * packed, generator).to(dtype) for name in first}
        layers[last] = _layer(6, 5, generator).to(dtype)
        stand_ins: dict[str, Any] = {"training": training}
        stand_ins |= {name: copy.deepcopy(one).train(training) for name, one in rest.items()}
        stand_ins |= layers
        if shape.dropout is not None and isinstance(getattr(block, shape.dropout), float | int):
            stand_ins |= {shape.dropout: 0.5}
        elif shape.dropout is not None:
            stand_ins[shape.dropout] = _shifted
        small = StandIn(block, **stand_ins)
        x = (scale * torch.randn(3, 4, 5, generator=generator)).to(dtype)
        try:
            wanted = _result_and_gradients(theirs, small, list(layers.values()), x)
            result = _result_and_gradients(ours, small, list(layers.values()), x)
        except Exception:  # code of any kind
            return False
        limit = 1e-5 if dtype == torch.float32 else 0.05
        if not all(is_close(one, right, limit) for one, right in zip(result, wanted, strict=True)):
            return False
    return True


def is_close(ours: Tensor, wanted: Tensor, limit: float) -> bool:
    """Return whether tensors have the same shape and dtype, and an error below `limit` of the norm."""
    if ours.dtype != wanted.dtype or ours.shape != wanted.shape:
        return False
    error = (ours.double() - wanted.double()).norm()
    return bool(error <= limit * wanted.double().norm())


class _Outputs:
    """The output of a stand-in of the model under the head: hidden states and nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> Tensor:
        return (self.last_hidden_state,)[place]

    def __contains__(self, name: str) -> bool:
        return name == "last_hidden_state"

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def has_same_loss(ours: Callable[..., Any], theirs: Callable[..., Any], model: Any) -> bool:
    """Return whether two `forward`s of a causal language model have the same loss for given hidden states."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.lm_head.weight.shape[0]
    head = nn.Linear(4, vocabulary, bias=model.lm_head.bias is not None)
    for parameter in head.parameters():
        parameter.copy_(3 * torch.randn(parameter.shape, generator=generator))
    hidden = 3 * torch.randn(2, 5, 4, generator=generator)
    labels = torch.randint(0, vocabulary, (2, 5), generator=generator)
    labels[0, 2] = -100

    def decoder(*arguments: Any, **inputs: Any) -> _Outputs:
        return _Outputs(hidden)

    small = StandIn(model, lm_head=head, training=True, **{under_head(model): decoder})
    try:
        wanted = inspect.unwrap(theirs)(small, input_ids=labels.clamp(min=0), labels=labels).loss
        result = ours(small, input_ids=labels.clamp(min=0), labels=labels, skip_logits=True, return_dict=True).loss
    except Exception:  # code of any kind
        return False
    return bool(torch.allclose(result, wanted, rtol=1e-4))


def _layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def _shifted(x: Tensor) -> Tensor:
    """Stand in for dropout, so that its place matters."""
    return x + 1


def _result_and_gradients(
    forward: Callable[..., Tensor], block: Any, layers: list[nn.Linear], x: Tensor
) -> list[Tensor]:
    x = x.clone().requires_grad_(True)
    inputs = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    with torch.enable_grad(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)  # for dropout
        y = forward(block, x)
        weights = torch.linspace(-1, 1, y.numel()).view(y.shape)
        return [y.detach(), *torch.autograd.grad((y.float() * weights).sum(), inputs, materialize_grads=True)]
