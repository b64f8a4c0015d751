"""Attention, as an entry of transformers' registries of attention and mask functions.

The registries choose by the name in a model's configuration, so a model is patched by a name, and its caches, masks and
windows go on working. Each name carries what to fall back to: what our operator cannot express goes there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.attention import attention
from tilesmith.ops.attention.reference import bounds, visible
from tilesmith.patch.families import Family
from tilesmith.patch.positions import ALL_THERE, all_there, places

PREFIX = "tilesmith_"


def has_mask_registry() -> bool:
    """Transformers before 4.53 makes masks inside each model, and always whole ones for names that it does not know."""
    return find_spec("transformers.masking_utils") is not None


def registered(family: Family, config: Any) -> str:
    """The name under which a model of this family finds our attention, falling back to what the model had.

    FlashAttention and FlexAttention take masks of other forms than ours: models that had those fall back to PyTorch's.
    That knows nothing of capped scores, so models with these always fall back to transformers' own.
    """
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    fallback = "eager" if capped or config._attn_implementation == "eager" else "sdpa"
    name = f"{PREFIX}{family.folder}_{fallback}"
    attentions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    attend = family.modeling.eager_attention_forward if fallback == "eager" else attentions[fallback]
    attentions.register(name, functools.partial(attended, attend))
    masks.register(name, functools.partial(key_mask, masks[fallback]))
    return name


@functools.cache
def saying_that_all_is_there(original: Callable[..., Any]) -> Callable[..., Any]:
    """A decoder's `forward` that, given neither mask nor positions, says that every token is there, in its place.

    Without a mask transformers looks whether positions start anew, as in packed sequences, and waits for the GPU to
    tell. Where it cannot look, under torch.compile, and in some releases always, it makes a whole mask, and attention
    would go to the fallback.
    """
    names = tuple(inspect.signature(original).parameters)[1:]  # but self

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        tokens = named.get("input_ids") if named.get("inputs_embeds") is None else named["inputs_embeds"]
        unsaid = all(named.get(name) is None for name in ("attention_mask", "position_ids", "past_key_values"))
        if unsaid and tokens is not None:
            named["attention_mask"] = all_there((tokens.shape[0], tokens.shape[1]), tokens.device)
            named["position_ids"] = places(tokens.shape[1], tokens.device)
        return original(self, **named)

    return forward


def key_mask(
    whole_mask: Callable[..., Tensor | None],
    *,
    kv_length: int,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> Tensor | None:
    """What our attention needs to know of padding: nothing, or which keys are there, boolean [batch, keys].

    Causality and windows it knows by itself. Where there is more to the mask, or queries do not end at the last key, as
    with a static cache, the whole of it is made for the fallback, boolean or additive [batch, 1, queries, keys].
    """
    plain = allow_is_causal_skip and _ends_at_last_key(kv_offset + kv_length, kv_length, others)
    if plain and (attention_mask is None or hasattr(attention_mask, ALL_THERE)):
        return None
    if plain and attention_mask is not None and attention_mask.shape[1] == kv_offset + kv_length:
        return attention_mask[:, kv_offset:]
    # Never skipped: no mask at all means "causal" to us, where queries end at the last key.
    return whole_mask(
        kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask, allow_is_causal_skip=False, **others
    )  # fmt: skip


def _ends_at_last_key(end: int, kv_length: int, others: dict[str, Any]) -> bool:
    """Whether the last query stands at the last key. Before transformers 5, `cache_position` says where queries are."""
    positions = others.get("cache_position")
    if positions is None:
        start = others.get("q_offset", 0)
        return not isinstance(start, Tensor) and start + others["q_length"] == end
    if positions.shape[0] == kv_length:
        return True
    return not torch.compiler.is_compiling() and int(positions[-1]) + 1 == end


def attended(
    fallback: Callable[..., tuple[Tensor, Tensor | None]],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers' modules call it; the result is [batch, queries, heads, head size]."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = None if sliding_window is None else (sliding_window - 1, 0)
    has_whole_mask = attention_mask is not None and attention_mask.ndim != 2
    wants_weights = bool(others.get("output_attentions"))
    if causal and not has_whole_mask and not wants_weights:
        output = attention(
            query, key, value, causal=True, mask=attention_mask, scale=scaling, window=window, softcap=softcap or 0.0,
            dropout=dropout,
        )  # fmt: skip
        return output.transpose(1, 2), None
    if causal and not has_whole_mask:
        attention_mask = _additive(query, key, attention_mask, bounds(True, window))
    given = {"sliding_window": sliding_window, "softcap": softcap, "is_causal": is_causal}
    others |= {name: option for name, option in given.items() if option is not None}
    return fallback(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def _additive(query: Tensor, key: Tensor, present: Tensor | None, sides: tuple[int, int]) -> Tensor:
    """The whole mask that our attention does without: zero where a query sees a key, and very little elsewhere."""
    seen = visible(query.shape[2], key.shape[2], *sides, device=query.device)[None, None]
    if present is not None:
        seen = seen & present[:, None, None, :]
    return torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, torch.finfo(query.dtype).min)
