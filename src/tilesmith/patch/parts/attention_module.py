"""What attention modules compute around attention: rotary positions, and the projections to q, k, v and at the end.

The rotation computes in single precision and rounds once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
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


def _duplicated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours rotate together, but the tables repeat as if halves did (GLM)."""
    half = cos.shape[-1] // 2
    rotated_q, rotated_k = rope(q, k, cos[..., :half], sin[..., :half], True, 2 * half)
    return rotated_q, rotated_k


def _neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours rotate together, and have neighbouring columns (Cohere)."""
    rotated_q, rotated_k = rope(q, k, cos, sin, True)
    return rotated_q, rotated_k


def _one_column(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Halves rotate together, with one column per pair (gpt-oss)."""
    rotated_q, rotated_k = rope(q, k, cos, sin, False, 2 * cos.shape[-1])
    return rotated_q, rotated_k


ROTATIONS = (rotary, _duplicated, _neighbours, _one_column)


@torch.no_grad()
def rotation_form(theirs: Callable[..., Any], tables: Any, head_size: int) -> Callable[..., Any] | None:
    """Return the form that rotates the same as a family's own function; None where there is none.

    `tables` is the module that makes cosines and sines. Modules that rotate a part of each head may pass only that.
    """
    plain = copy.deepcopy(tables).to("cpu")
    kinds = getattr(plain, "rope_type", None)
    layer_type = next(iter(kinds)) if isinstance(kinds, dict) else None
    others = () if layer_type is None else (layer_type,)
    try:
        cos, sin = plain(torch.zeros(2, 1), torch.arange(3, 8)[None], *others)
    except Exception:  # another signature, of any kind
        return None
    for size in (head_size, cos.shape[-1]):
        q, k = (torch.randn(2, heads, 5, size, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2))
        try:
            wanted = theirs(q, k, cos, sin)
        except Exception:
            continue
        for form in ROTATIONS:
            if _rotates_the_same(form, (q, k, cos, sin), wanted):
                return form
    return None


def _rotates_the_same(form: Callable[..., Any], given: tuple[Tensor, ...], wanted: Any) -> bool:
    try:
        ours = form(*given)
    except (ValueError, RuntimeError):
        return False
    return all(torch.allclose(one, right, rtol=1e-4, atol=1e-5) for one, right in zip(ours, wanted, strict=True))


def require_projection(forward: Callable[..., Any], fusion: str) -> None:
    """Raise UnknownCodeError where an attention module's `forward` has not the statements of this fusion."""
    rewritten(forward, {}, PROJECTIONS[fusion])


def _with_dimension(rotation: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rotation with the argument `unsqueeze_dim` of transformers: 1 for heads before positions, else 2."""

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim == 1:
            return rotation(q, k, cos, sin)  # type: ignore[no-any-return]  # a form of `ROTATIONS`
        q, k = rotation(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotated


@functools.cache
def attention_forward(
    forward: Callable[..., Any], rotation: Callable[..., Any] | None, fusions: tuple[str, ...]
) -> Callable[..., Any]:
    """Return an attention module's own `forward` with our rotation of q and k, if any, and with these fusions."""
    names: dict[str, Any] = {} if rotation is None else {ROTARY: _with_dimension(rotation)}
    changes = {pattern: ours for fusion in fusions for pattern, ours in PROJECTIONS[fusion].items()}
    return rewritten(forward, {**names, "projections": projections} if fusions else names, changes)
