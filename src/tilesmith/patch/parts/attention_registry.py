"""Attention, as an entry of transformers' registries of attention and mask functions.

The registries look up the name in a model's configuration. `patch` sets that name, so caches, masks and windows keep
working. Each name also selects a fallback for the cases that our operator does not support.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.attention import attention
from tilesmith.ops.attention.reference import bounds, visible
from tilesmith.ops.attention_varlen import attention_varlen
from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.families import Family
from tilesmith.patch.parts.default_positions import called_with_full_mask, default_positions, full_mask, is_full
from tilesmith.patch.report import UnknownCodeError

PREFIX = "tilesmith_"
REGISTRY = "ALL_ATTENTION_FUNCTIONS"
"""The registry's name in transformers' modules."""
IGNORED = (
    "position_ids",
    "cache_position",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "num_items_in_batch",
    "position_embeddings",
)
"""Options that are tensors and that PyTorch's attention ignores too: the mask has what follows from them."""
PACKED = "cu_seq_lens_q"
"""The option with the starts of packed sequences, and the end."""
CACHE = "past_key_values"
DEFAULTED = ("attention_mask", "position_ids", CACHE)
"""Arguments of a decoder; where a call gives none of them, mask and positions have default values."""


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


@functools.cache
def with_default_positions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decoder's `forward` that, without mask and positions, passes a full mask and default positions.

    Without a mask, transformers checks whether positions restart, as in packed sequences, and waits for the GPU. Under
    torch.compile, and in some releases always, it builds a full [queries, keys] mask, which only the fallback takes.
    """
    names = tuple(inspect.signature(original).parameters)[1:]  # without self
    if not {"input_ids", "inputs_embeds", *DEFAULTED} - {CACHE} <= set(names):
        raise UnknownCodeError.of(original)
    packs = CACHE in names  # an encoder has no cache, and its positions may restart within a sequence

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        tokens = named.get("input_ids") if named.get("inputs_embeds") is None else named["inputs_embeds"]
        if tokens is not None and all(named.get(name) is None for name in DEFAULTED):
            named["attention_mask"] = full_mask((tokens.shape[0], tokens.shape[1]), tokens.device)
            named["position_ids"] = default_positions(tokens.shape[1], tokens.device)
            return called_with_full_mask(original, self, named)
        if packs and tokens is not None and named.get("attention_mask") is None and named.get(CACHE) is None:
            packing = _packing(named.get(PACKED), named["position_ids"], (tokens.shape[0], tokens.shape[1]))
            if packing:
                return called_with_full_mask(original, self, {**named, **packing})
        return original(self, **named)

    return forward


def _packing(starts: Tensor | None, positions: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the arguments for sequences that are packed, as positions that restart say; none where nothing is known.

    Without `starts` this waits for the GPU to count the sequences, as transformers does. A tracer cannot wait.
    """
    if starts is None:
        if must_be_dispatched():
            return {}
        if not isinstance(positions, Tensor) or positions.ndim != 2 or positions.shape[1] != shape[1]:
            return {}
        positions = positions.expand(shape)
        begins = torch.ones_like(positions, dtype=torch.bool)
        begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
        starts = F.pad(begins.flatten().nonzero()[:, 0], (0, 1), value=begins.numel()).to(torch.int32)
    mask = full_mask(shape, starts.device)
    return {"attention_mask": mask} if len(starts) == shape[0] + 1 else {"attention_mask": mask, PACKED: starts}


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
            attention_mask = _additive(query, key, attention_mask, bounds(True, window))
        return fallback(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)
    if attention_mask is not None and is_full and (attention_mask.shape[2] != 1 or query.shape[2] == 1):
        # The mask has causality and windows in it.
        output = attention(query, key, value, mask=attention_mask, **rest)
    elif PACKED in options and attention_mask is None and query.shape[2] == key.shape[2]:
        output = _packed(query, key, value, options[PACKED], causal=causal, window=window, **rest)
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


def _additive(query: Tensor, key: Tensor, present: Tensor | None, sides: tuple[int, int]) -> Tensor:
    """Return the mask of our attention in additive form: zero where a query sees a key, else the lowest number."""
    seen = visible(query.shape[2], key.shape[2], *sides, device=query.device)[None, None]
    if present is not None:
        seen = seen & present[:, None, None, :]
    return torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, torch.finfo(query.dtype).min)
