"""Attention, as an entry of transformers' registries of attention and mask functions.

The registries look up the name in a model's configuration. `patch` sets that name, so caches, masks and windows keep
working. Each name also selects a fallback for the cases that our operator does not support.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.ops.attention import attention
from tilesmith.ops.attention.reference import bounds, visible
from tilesmith.ops.attention_varlen import attention_varlen
from tilesmith.patch.families import Family
from tilesmith.patch.parts.decoder import PACKED, STARTS
from tilesmith.patch.parts.default_positions import is_full
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in, syntax_of

PREFIX = "tilesmith_"
REGISTRY = "ALL_ATTENTION_FUNCTIONS"
"""The registry's name in transformers' modules."""
IGNORED = (
    "position_ids",
    "cache_position",
    PACKED,
    "cu_seq_lens_k",
    "num_items_in_batch",
    "position_embeddings",
)
"""Options that are tensors and that PyTorch's attention ignores too: the mask has what follows from them."""


def has_mask_registry() -> bool:
    """Return whether transformers has a registry of masks. Before 4.53 each model builds full masks by itself."""
    return find_spec("transformers.masking_utils") is not None


def register_attention(family: Family, config: Any) -> str:
    """Register our attention for a model of this family; return its name, which includes the fallback.

    FlashAttention and FlexAttention take other mask formats than ours, so models with those fall back to PyTorch's
    attention. PyTorch's attention does not cap scores, so models with capped scores fall back to "eager".
    """
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    fallback = "eager" if capped or config._attn_implementation == "eager" else "sdpa"
    name = f"{PREFIX}{family.folder}_{fallback}"
    attentions = getattr(import_module("transformers.modeling_utils"), REGISTRY)
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    fallback_attention = family.modeling.eager_attention_forward if fallback == "eager" else attentions[fallback]
    attentions.register(name, functools.partial(attention_of_module, fallback_attention))
    masks.register(name, functools.partial(key_mask, masks[fallback]))
    return name


def key_mask(
    fallback_mask: Callable[..., Tensor | None],
    *,
    kv_length: int,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> Tensor | None:
    """Return which keys are not padding: [batch, keys] for causal masks; None where all are present.

    For masks to both sides the result is [batch, 1, 1, keys]. Our attention handles causality and windows by itself.
    For any other mask, and where the last query is not at the last key (static caches), return the fallback's mask,
    boolean or additive [batch, 1, queries, keys].
    """
    if others.get("allow_is_bidirectional_skip") and others.get("q_length") == kv_length:
        if attention_mask is None or is_full(attention_mask):
            return None
        return attention_mask[:, None, None, :]
    plain = allow_is_causal_skip and not _is_chunked(kv_length, others)
    plain = plain and _ends_at_last_key(kv_offset + kv_length, kv_length, others)
    if plain and is_full(attention_mask):
        return None
    if plain and attention_mask is not None and attention_mask.shape[1] == kv_offset + kv_length:
        return attention_mask[:, kv_offset:]
    # allow_is_causal_skip=False: None would mean "causal, and the last query is at the last key" to our attention.
    return fallback_mask(
        kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask, allow_is_causal_skip=False, **others
    )  # fmt: skip


def _is_chunked(kv_length: int, others: dict[str, Any]) -> bool:
    """Return whether queries see only keys of their chunk (Llama 4), which our windows do not express."""
    size = others.get("local_size")
    return size is not None and kv_length > size and size != getattr(others.get("config"), "sliding_window", None)


def _ends_at_last_key(end: int, kv_length: int, others: dict[str, Any]) -> bool:
    """Return whether the last query is at the last key. Before transformers 5 `cache_position` has the positions."""
    positions = others.get("cache_position")
    if positions is None:
        start = others.get("q_offset", 0)
        return not isinstance(start, Tensor) and start + others["q_length"] == end
    if positions.shape[0] == kv_length:
        return True
    return not torch.compiler.is_compiling() and int(positions[-1]) + 1 == end


def why_fallback(module: Any) -> str | None:
    """Return why PyTorch computes every attention of this module, or None where our operator does."""
    if hasattr(module, "sinks"):
        return "attention has sinks, which PyTorch's attention computes"
    if getattr(module, "v_head_dim", None) != getattr(module, "qk_head_dim", None):
        return "the heads of v have another size than those of q, so PyTorch computes attention"
    return None


def require_known_attention(family: Family, module: Any, decoder: type[nn.Module]) -> None:
    """Raise UnknownCodeError where a module of an unknown family may attend in another way than our operator does.

    Windows must be both in the decoder's masks and among the options of attention, and a family's own function must
    compute softmax(scale · q·kᵀ)·v.
    """
    forward = type(module).forward
    passed = {one.arg for call in ast.walk(syntax_of(forward)) if isinstance(call, ast.Call) for one in call.keywords}
    in_masks = any("sliding" in name for name in names_in(decoder.forward))
    layers = getattr(module.config, "layer_types", None) or ["sliding_attention"]
    has_windows = getattr(module.config, "sliding_window", None) is not None and any("sliding" in one for one in layers)
    if has_windows and in_masks != ("sliding_window" in passed):
        raise UnknownCodeError.of(forward)
    if module.config._attn_implementation == "eager" and not _is_plain_attention(family, module):
        raise UnknownCodeError(f"eager_attention_forward of {family.prefix} computes something else than attention")


@torch.no_grad()
def _is_plain_attention(family: Family, module: Any) -> bool:
    """Return whether a family's own attention function computes softmax(scale · q·kᵀ)·v, tried on random numbers."""
    generator = torch.Generator().manual_seed(0)
    groups = getattr(module, "num_key_value_groups", 1)
    heads, size = 2 * groups, getattr(module, "head_dim", 8)
    q = torch.randn(1, heads, 4, size, generator=generator)
    k, v = (torch.randn(1, 2, 4, size, generator=generator) for _ in range(2))
    keys, values = (one.repeat_interleave(groups, dim=1) for one in (k, v))
    wanted = F.scaled_dot_product_attention(q, keys, values, scale=0.3).transpose(1, 2)
    try:
        theirs, _ = family.modeling.eager_attention_forward(module, q, k, v, None, scaling=0.3, dropout=0.0)
    except Exception:  # another signature, of any kind
        return False
    return theirs.shape == wanted.shape and torch.allclose(theirs, wanted, rtol=1e-4, atol=1e-5)


def attention_of_module(
    fallback: Callable[..., tuple[Tensor, Tensor | None]],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return attention as transformers' modules call it, [batch, queries, heads, head size], and None or the weights.

    `options` may hold sliding_window, softcap, is_causal and output_attentions; the fallback gets all of them.
    """
    starts = options.pop(STARTS, None)
    options = {name: option for name, option in options.items() if option is not None}
    causal = options.get("is_causal", getattr(module, "is_causal", True))
    side = options["sliding_window"] - 1 if "sliding_window" in options else None
    window = None if side is None else (side, 0 if causal else side)
    # Tensors among the options change the scores: gpt-oss has a sink for each head. Heads of v may have another size
    # than those of q (DeepSeek).
    wants_more = bool(options.get("output_attentions")) or query.shape[-1] != value.shape[-1]
    wants_more = wants_more or any(isinstance(one, Tensor) and name not in IGNORED for name, one in options.items())
    rest = {"scale": scaling, "softcap": options.get("softcap", 0.0), "dropout": dropout}
    is_full = attention_mask is not None and attention_mask.ndim == 4
    if wants_more:
        if causal and not is_full:
            attention_mask = _additive(query, key, attention_mask, bounds(True, window), starts)
        return fallback(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)
    if attention_mask is not None and is_full and (attention_mask.shape[2] != 1 or query.shape[2] == 1):
        # The mask has causality and windows in it. Some releases make it longer than the keys.
        attention_mask = attention_mask[..., : key.shape[2]]
        if starts is not None:  # but not packed sequences
            other = ~_same_sequence(starts, query)
            lowest = 0 if attention_mask.dtype == torch.bool else torch.finfo(attention_mask.dtype).min
            attention_mask = attention_mask.masked_fill(other, lowest)
        output = attention(query, key, value, mask=attention_mask, **rest)
    elif starts is not None:
        output = _packed(query, key, value, starts, causal=causal, window=window, **rest)
    else:
        causal = causal and not is_full
        output = attention(query, key, value, causal=causal, mask=attention_mask, window=window, **rest)
    return output.transpose(1, 2), None


def _packed(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, **options: Any) -> Tensor:
    """Return attention within each of the packed sequences, which follow each other in the batch; [batch, heads, ...].

    `starts` holds where each sequence starts among all tokens of the batch, and their number.
    """
    batch, _, length, _ = query.shape
    q, k, v = (one.transpose(1, 2).reshape(batch * length, one.shape[1], -1) for one in (query, key, value))
    output: Tensor = attention_varlen(q, k, v, starts, **options)
    return output.view(batch, length, *output.shape[1:]).transpose(1, 2)


def _same_sequence(starts: Tensor, query: Tensor) -> Tensor:
    """Return which tokens of each row are in one packed sequence, [batch, 1, tokens, tokens]."""
    batch, _, length, _ = query.shape
    tokens = torch.arange(batch * length, device=query.device)
    sequence = torch.bucketize(tokens, starts.to(query.device), right=True).view(batch, 1, 1, length)
    return sequence == sequence.transpose(2, 3)


def _additive(
    query: Tensor, key: Tensor, present: Tensor | None, sides: tuple[int, int], starts: Tensor | None
) -> Tensor:
    """Return the mask of our attention in additive form: zero where a query sees a key, else the lowest number."""
    seen = visible(query.shape[2], key.shape[2], *sides, device=query.device)[None, None]
    if starts is not None:
        seen = seen & _same_sequence(starts, query)
    if present is not None:
        seen = seen & present[:, None, None, :]
    return torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, torch.finfo(query.dtype).min)
