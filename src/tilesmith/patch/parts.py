"""Norm, feed-forward block and rotary embedding: what takes the place of `forward` in modules of transformers.

All of these compute in single precision and round once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rope import rope
from tilesmith.ops.swiglu import swiglu

ROTARY = "apply_rotary_pos_emb"
"""What transformers' attention modules call the function that turns q and k."""


def plain_norm(self: Any, hidden_states: Tensor) -> Tensor:
    # A weight in higher precision, as under autocast, raises the result's: what comes after may count on that.
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = rms_norm(hidden_states.to(dtype), self.weight, self.variance_epsilon)
    return normal


def gemma_norm(self: Any, x: Tensor) -> Tensor:
    normal: Tensor = rms_norm(x, 1.0 + self.weight.float(), self.eps)
    return normal


def feed_forward(self: Any, x: Tensor) -> Tensor:
    product: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
    return product


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned_q, turned_k = rope(q, k, cos, sin)
    return turned_q, turned_k


def calls_rotary(forward: Callable[..., Any]) -> bool:
    return ROTARY in inspect.unwrap(forward).__code__.co_names


@functools.cache
def with_our_rotary(forward: Callable[..., Any]) -> Callable[..., Any]:
    """An attention module's own `forward`, in which the name of the rotary function means ours.

    The function is a global of its module, and to replace it there would change every model of the process. With a
    namespace of its own the code stays that of the transformers release at hand: caches, norms of q and k, and all.
    """
    plain = inspect.unwrap(forward)
    assert isinstance(plain, FunctionType)
    names = {**plain.__globals__, ROTARY: rotary}
    del names["__name__"]  # torch.compile looks names up in the module called so, in place of here
    copy = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    copy.__kwdefaults__ = plain.__kwdefaults__
    return functools.wraps(plain)(copy)
