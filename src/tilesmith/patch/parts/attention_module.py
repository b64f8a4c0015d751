"""What attention modules compute around attention: norms of q and k, rotary positions, and projections.

The rotation computes in single precision and rounds once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rms_norm_rope import rms_norm_rope
from tilesmith.ops.rope import rope
from tilesmith.patch.families import Family
from tilesmith.patch.gradients.plain_modules import kernels_can_take
from tilesmith.patch.gradients.projections import joined_operands, projections
from tilesmith.patch.gradients.rotated_projections import rotated
from tilesmith.patch.parts.norms import SCALES, is_ours
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in, rewritten, syntax_of

ROTARY = "apply_rotary_pos_emb"
"""The name of the function that rotates q and k in transformers' attention modules."""
COMPLEX_ROTARY = "apply_rotary_emb"
"""The same where complex numbers hold cosines and sines (Llama 4)."""

PROJECTIONS: dict[str, tuple[dict[str, str], ...]] = {
    "qkv projections": tuple(
        {
            rf"^( *)({query} = .*)self\.{q}\(hidden_states\)"
            rf"(.*\n *{key} = .*)self\.{k}\(hidden_states\)"
            rf"(.*\n *{value} = .*)self\.{v}\(hidden_states\)": (
                rf"\1projected = projections(hidden_states, self.{q}, self.{k}, self.{v})"
                r"\n\1\2projected[0]\3projected[1]\4projected[2]"
            )
        }
        for (query, key, value), (q, k, v) in (
            (("query_states", "key_states", "value_states"), ("q_proj", "k_proj", "v_proj")),
            (("query_layer", "key_layer", "value_layer"), ("query", "key", "value")),
        )
    ),
    "output projection": (
        {
            r"^( *attn_output = .*)self\.(o_proj|dense|c_proj|Wo)\(attn_output\)": (
                r"\1projections(attn_output, self.\2)[0]"
            )
        },
    ),
}
"""By fusion, the statements of an attention module that it replaces, in each way that modules write them.

The statements of q, k and v are consecutive.
"""
ONE_LAYER = {"qkv_proj", "query_key_value", "Wqkv", "c_attn"}
"""Names of layers that compute q, k and v together. The gradient of their input is one GEMM already."""


QK_NORM = "qk norm"
_ROTATED = {
    r"apply_rotary_pos_emb\((query_states, key_states, cos, sin)\)": r"normed_rotary(self, \1)",
}
QK_NORMS: tuple[dict[str, str], ...] = (
    {
        r"^( *query_states = )self\.q_norm\((.*)\)(\.transpose\(1, 2\))$": r"\1\2\3",
        r"^( *key_states = )self\.k_norm\((.*)\)(\.transpose\(1, 2\))$": r"\1\2\3",
        **_ROTATED,
    },
    {
        r"^ *query_states = self\.q_norm\(query_states\)\n": "",
        r"^ *key_states = self\.k_norm\(key_states\)\n": "",
        **_ROTATED,
    },
)
"""How modules write the norms of q and k before the rotation; each way, the statements that the fusion replaces."""


_SEEN = r"\.view\(hidden_shape\)\.transpose\(1, 2\)\n\1"
ROTATED_PROJECTIONS = {
    r"^( *)projected = projections\(hidden_states, (.*)\)\n\1"
    rf"query_states = projected\[0\]{_SEEN}key_states = projected\[1\]{_SEEN}value_states = projected\[2\]{_SEEN}"
    rf"cos, sin = position_embeddings\n\1query_states, key_states = {name}query_states, key_states, cos, sin\)$": (
        r"\1cos, sin = position_embeddings\n"
        r"\1query_states, key_states, value_states = "
        rf"rotated_projections(self, hidden_states, (\2), hidden_shape, cos, sin, {normed})"
    )
    for name, normed in ((rf"{ROTARY}\(", False), (r"normed_rotary\(self, ", True))
}
"""The same statements after the fusions of projections and norms: they follow each other (Llama, Qwen3, Gemma)."""


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


def _complex(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours rotate together; q and k have positions before heads, and one complex number has both tables."""
    q, k = rope(q.transpose(1, 2), k.transpose(1, 2), angles.real, angles.imag, True, 2 * angles.shape[-1])
    return q.transpose(1, 2), k.transpose(1, 2)


ROTATIONS = (rotary, _duplicated, _neighbours, _one_column)


def rotation_of(model: Any, family: Family, forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return our rotation of q and k for an attention module's `forward`; None where it has none that we know."""
    name = next((name for name in (ROTARY, COMPLEX_ROTARY) if name in names_in(forward)), None)
    if name is None:
        return None
    if not family.tried:
        return rotary if name == ROTARY else None
    kind = family.of(family.tables)
    tables = next((module for module in model.modules() if isinstance(module, kind)), None)
    heads = getattr(model.config, "num_attention_heads", None) or 1
    size = getattr(model.config, "head_dim", None) or getattr(model.config, "hidden_size", heads) // heads
    return None if tables is None else rotation_form(getattr(family.modeling, name), tables, size)


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
        made = plain(torch.zeros(2, 1), torch.arange(3, 8)[None], *others)
        is_complex = isinstance(made, Tensor) and made.is_complex()
        angles = (made,) if is_complex else tuple(made)
    except Exception:  # another signature, of any kind
        return None
    for size in (head_size, angles[0].shape[-1]):
        q, k = (torch.randn(2, heads, 5, size, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2))
        if is_complex:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        try:
            wanted = theirs(q, k, *angles)
        except Exception:
            continue
        for form in (_complex,) if is_complex else ROTATIONS:
            if _rotates_the_same(form, (q, k, *angles), wanted):
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
    _recognised(forward, PROJECTIONS[fusion])


def has_one_layer(forward: Callable[..., Any]) -> bool:
    """Return whether an attention module computes q, k and v by one layer."""
    return bool(names_in(forward) & ONE_LAYER)


def _with_dimension(rotation: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rotation with the argument `unsqueeze_dim` of transformers: 1 for heads before positions, else 2."""

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim == 1:
            return rotation(q, k, cos, sin)  # type: ignore[no-any-return]  # a form of `ROTATIONS`
        q, k = rotation(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotated


def normed_rotary(module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return q and k, normed by the module's norms and rotated; one kernel where both norms are plain."""
    scales = _norm_scales(module, q.dtype) if q.dtype == k.dtype and cos.shape[-1] == q.shape[-1] else None
    if scales is None:
        return rotary(module.q_norm(q), module.k_norm(k), cos, sin)
    q_weight, k_weight, eps = scales
    rotated_q, rotated_k = rms_norm_rope(q, k, q_weight, k_weight, cos, sin, eps)
    return rotated_q, rotated_k


def _norm_scales(module: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, float] | None:
    """Return the weights of the norms of q and k, and their eps; None where one kernel cannot compute both."""
    norms = module.q_norm, module.k_norm
    for norm in norms:
        if not is_ours(norm) or torch.promote_types(dtype, norm.weight.dtype) != dtype:
            return None
    (q_weight, eps), (k_weight, other_eps) = (SCALES[norm.forward.__func__](norm) for norm in norms)
    return (q_weight, k_weight, eps) if eps == other_eps else None


def rotated_projections(
    module: Any, x: Tensor, layers: tuple[Any, Any, Any], shape: tuple[int, ...], cos: Tensor, sin: Tensor, normed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of x as [batch, heads, positions, head size]; q and k normed, with `normed`, and rotated."""
    operands: Any = None
    if x.requires_grad and not cos.requires_grad and not sin.requires_grad and kernels_can_take(x, cos, sin):
        operands = joined_operands(x, *layers)
    if operands is not None:
        scales: Any = _norm_scales(module, operands[0].dtype) if normed else (None, None, 0.0)
        if scales is not None and not (normed and cos.shape[-1] != shape[-1]):
            q_weight, k_weight, eps = scales
            q, k, v = rotated(operands[0], cos, sin, q_weight, k_weight, shape[-1], eps, *operands[1:])
            return q, k, v
    q, k, v = (one.view(shape).transpose(1, 2) for one in projections(x, *layers))
    q, k = normed_rotary(module, q, k, cos, sin) if normed else rotary(q, k, cos, sin)
    return q, k, v


def require_qk_norm(forward: Callable[..., Any]) -> None:
    """Raise UnknownCodeError where an attention module's `forward` has not the norms of q and k.

    Every call must rotate, and between norms and rotation q and k may only be transposed.
    """
    _recognised(forward, QK_NORMS)
    normed: set[str] = set()
    for statement in syntax_of(forward).body:
        text = ast.unparse(statement)
        target, _, value = text.partition(" = ")
        if ROTARY in text:
            if isinstance(statement, ast.Assign) and normed == {"query_states", "key_states"}:
                return
            break
        if re.match(r"self\.[qk]_norm\(", value):
            normed.add(target)
        elif any(name in text and text != f"{name} = {name}.transpose(1, 2)" for name in normed):
            break
    raise UnknownCodeError.of(forward)


def _recognised(forward: Callable[..., Any], ways: tuple[dict[str, str], ...]) -> dict[str, str]:
    """Return the way in which a `forward` is written; UnknownCodeError where it is none of these."""
    for changes in ways:
        try:
            rewritten(forward, {}, changes)
        except UnknownCodeError:
            continue
        return changes
    raise UnknownCodeError.of(forward)


@functools.cache
def attention_forward(
    forward: Callable[..., Any], rotation: Callable[..., Any] | None, fusions: tuple[str, ...]
) -> Callable[..., Any]:
    """Return an attention module's own `forward` with our rotation of q and k, if any, and with these fusions."""
    names: dict[str, Any] = {} if rotation is None else {ROTARY: _with_dimension(rotation)}
    if rotation is _complex:
        names = {COMPLEX_ROTARY: _complex}
    # The norms first: what they replace is around the projections.
    changes = _recognised(forward, QK_NORMS) if QK_NORM in fusions else {}
    for fusion in fusions:
        if fusion in PROJECTIONS:
            changes = {**changes, **_recognised(forward, PROJECTIONS[fusion])}
    if fusions:
        names |= {"projections": projections, "normed_rotary": normed_rotary}
    if rotation is rotary:
        for pattern, replacement in ROTATED_PROJECTIONS.items():
            try:
                return rewritten(
                    forward, {**names, "rotated_projections": rotated_projections}, {**changes, pattern: replacement}
                )
            except UnknownCodeError:
                continue
    return rewritten(forward, names, changes)
