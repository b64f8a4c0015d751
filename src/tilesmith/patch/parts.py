"""Norms, and what attention modules compute before attention: what takes the place of `forward` in transformers.

All of these compute in single precision and round once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rope import rope
from tilesmith.patch.projections import projections
from tilesmith.patch.rewriting import rewritten

ROTARY = "apply_rotary_pos_emb"
"""What transformers' attention modules call the function that turns q and k."""


TOGETHER = {
    r"^( *)(query_states = .*)self\.q_proj\(hidden_states\)"
    r"(.*\n *key_states = .*)self\.k_proj\(hidden_states\)"
    r"(.*\n *value_states = .*)self\.v_proj\(hidden_states\)": (
        r"\1projected = projections(hidden_states, self.q_proj, self.k_proj, self.v_proj)"
        r"\n\1\2projected[0]\3projected[1]\4projected[2]"
    )
}
"""The three projections of an attention module, which are statements that follow each other."""
OUTPUT = {r"^( *attn_output = )self\.o_proj\(attn_output\)": r"\1projections(attn_output, self.o_proj)[0]"}
"""The last projection of an attention module."""


def plain_norm(self: Any, hidden_states: Tensor) -> Tensor:
    # A weight in higher precision, as under autocast, raises the result's: what comes after may count on that.
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = rms_norm(hidden_states.to(dtype), *plain_scale(self))
    return normal


def plain_scale(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, norm.variance_epsilon


def gemma_norm(self: Any, x: Tensor) -> Tensor:
    normal: Tensor = rms_norm(x, *gemma_scale(self))
    return normal


def gemma_scale(norm: Any) -> tuple[Tensor, float]:
    return 1.0 + norm.weight.float(), norm.eps


SCALES: dict[Any, Callable[[Any], tuple[Tensor, float]]] = {plain_norm: plain_scale, gemma_norm: gemma_scale}
"""For the `forward` of each norm, the weight and eps that rms_norm is given."""


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned_q, turned_k = rope(q, k, cos, sin)
    return turned_q, turned_k


def calls_rotary(forward: Callable[..., Any]) -> bool:
    return ROTARY in inspect.unwrap(forward).__code__.co_names


@functools.cache
def attention_module(forward: Callable[..., Any], turns: bool, projects: bool) -> Callable[..., Any] | None:
    """An attention module's own `forward`, which turns q and k by our rotary function, and has q, k and v projected
    together; None where it would be as before."""
    names = {ROTARY: rotary} if turns else {}
    joined = None
    if projects:
        names_of_all = {**names, "projections": projections}
        joined = rewritten(forward, names_of_all, TOGETHER | OUTPUT) or rewritten(forward, names_of_all, TOGETHER)
    return joined or (rewritten(forward, names) if turns else None)
