"""What attention modules compute around attention: rotary positions, and the projections to q, k, v and at the end.

The rotation computes in single precision and rounds once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tilesmith.ops.rope import rope
from tilesmith.patch.gradients.projections import projections
from tilesmith.patch.rewriting import rewritten

ROTARY = "apply_rotary_pos_emb"
"""The name of the function that rotates q and k in transformers' attention modules."""

PROJECTIONS = {
    "qkv projections": {
        r"^( *)(query_states = .*)self\.q_proj\(hidden_states\)"
        r"(.*\n *key_states = .*)self\.k_proj\(hidden_states\)"
        r"(.*\n *value_states = .*)self\.v_proj\(hidden_states\)": (
            r"\1projected = projections(hidden_states, self.q_proj, self.k_proj, self.v_proj)"
            r"\n\1\2projected[0]\3projected[1]\4projected[2]"
        )
    },
    "output projection": {
        r"^( *attn_output = )self\.o_proj\(attn_output\)": r"\1projections(attn_output, self.o_proj)[0]"
    },
}
"""By fusion, the statements of an attention module that it replaces. The statements of q, k and v are consecutive."""


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated_q, rotated_k = rope(q, k, cos, sin)
    return rotated_q, rotated_k


def require_projection(forward: Callable[..., Any], fusion: str) -> None:
    """Raise UnknownCodeError where an attention module's `forward` has not the statements of this fusion."""
    rewritten(forward, {}, PROJECTIONS[fusion])


@functools.cache
def attention_forward(forward: Callable[..., Any], rotates: bool, fusions: tuple[str, ...]) -> Callable[..., Any]:
    """Return an attention module's own `forward` with our rotation of q and k and with these fusions."""
    names: dict[str, Any] = {ROTARY: rotary} if rotates else {}
    changes = {pattern: ours for fusion in fusions for pattern, ours in PROJECTIONS[fusion].items()}
    return rewritten(forward, {**names, "projections": projections} if fusions else names, changes)
