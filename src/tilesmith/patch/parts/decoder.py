"""What a decoder passes to its layers: default masks and positions, and the starts of packed sequences."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.parts.default_positions import called_with_full_mask, default_positions, full_mask
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import matches, syntax_of

PACKED = "cu_seq_lens_q"
"""The option of users with the starts of packed sequences, and the end."""
STARTS = "tilesmith_starts"
"""The same as an option from our decoder to our attention; with this option, every mask on the way is full."""
CACHE = "past_key_values"
DEFAULTED = ("attention_mask", "position_ids", CACHE)
"""Arguments of a decoder; where a call gives none of them, mask and positions have default values."""
COUNTS = (
    r"^ *position_ids = (cache_position\.unsqueeze\(0\)"
    r"|torch\.arange\(inputs_embeds\.shape\[1\], device=inputs_embeds\.device\)( \+ past_seen_tokens)?)$"
)
"""How decoders count positions from zero."""
LOOKS_FOR_PACKING = r"mask\w* = \w+\(.*position_ids=\w*position_ids|'position_ids': \w*position_ids"
"""How decoders pass positions to transformers' masks, which look for packed sequences then."""
MAKES_CHUNKS = r"create_chunked_causal_mask"
"""How a decoder makes masks of chunks (Llama 4), which transformers 5.23 and older releases count differently."""


def counts_from_zero(forward: Callable[..., Any]) -> bool:
    """Return whether a decoder's `forward` is known to count positions 0, 1, 2 … by default."""
    return matches(forward, COUNTS)


@functools.cache
def with_default_positions(original: Callable[..., Any], takes_starts: bool) -> Callable[..., Any]:
    """Return a decoder's `forward` that, without mask and positions, passes a full mask and default positions.

    Without a mask, transformers checks whether positions restart, as in packed sequences, and waits for the GPU. Under
    torch.compile, and in some releases always, it builds a full [queries, keys] mask, which only the fallback takes.
    With `takes_starts`, our attention gets the starts of packed sequences: given ones, and those of positions that
    restart where transformers looks for these. Only transformers' masks have the chunks of packed sequences (Llama 4),
    so a decoder with chunks gets positions instead of starts.
    """
    names = tuple(inspect.signature(original).parameters)[1:]  # without self
    if not {"input_ids", "inputs_embeds", *DEFAULTED} - {CACHE} <= set(names):
        raise UnknownCodeError.of(original)
    takes_starts = takes_starts and CACHE in names  # an encoder's positions may restart within a sequence
    looks, makes_chunks = (takes_starts and matches(original, code) for code in (LOOKS_FOR_PACKING, MAKES_CHUNKS))

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        tokens = named.get("input_ids") if named.get("inputs_embeds") is None else named["inputs_embeds"]
        if tokens is None:
            return original(self, **named)
        shape = (tokens.shape[0], tokens.shape[1])
        may_pack = takes_starts and named.get("attention_mask") is None and named.get(CACHE) is None
        if may_pack and named.get(PACKED) is not None and named.get("position_ids") is None:
            named["position_ids"] = _positions(named[PACKED], shape)
        if all(named.get(name) is None for name in DEFAULTED):
            named["attention_mask"] = full_mask(shape, tokens.device)
            named["position_ids"] = default_positions(shape[1], tokens.device)
            return called_with_full_mask(original, self, named)
        if may_pack and not makes_chunks:
            positions = named.get("position_ids") if looks and not _makes_cache(self, named) else None
            packing = _packing(named.get(PACKED), positions, shape)
            if packing:
                return called_with_full_mask(original, self, {**named, **packing})
        return original(self, **named)

    return forward


def _makes_cache(decoder: Any, named: dict[str, Any]) -> bool:
    """Return whether a decoder makes a cache by itself. Transformers then does not look for packed sequences."""
    asked = named.get("use_cache")
    if asked is None:
        asked = getattr(decoder.config, "use_cache", False)
    return bool(asked) and not (decoder.training and getattr(decoder, "gradient_checkpointing", False))


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
    return {"attention_mask": mask} if len(starts) == shape[0] + 1 else {"attention_mask": mask, STARTS: starts}


def _positions(starts: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the position of each token within its packed sequence, [batch, tokens]."""
    tokens = torch.arange(shape[0] * shape[1], device=starts.device)
    sequence = torch.bucketize(tokens, starts, right=True) - 1
    return (tokens - starts[sequence]).view(shape)


def options_reach_attention(model: nn.Module, decoder: type[nn.Module], attention: type[nn.Module]) -> bool:
    """Return whether every `forward` from the decoder to attention passes its options on."""
    modules = dict(model.named_modules())
    kinds = set()
    for name, module in modules.items():
        if isinstance(module, attention):
            kinds |= {type(one) for one in _chain(modules, name, decoder)}
    return all(_passes_options(kind.forward) for kind in kinds if kind not in (nn.ModuleList, nn.ModuleDict))


def _chain(modules: dict[str, nn.Module], name: str, decoder: type[nn.Module]) -> Iterator[nn.Module]:
    """Yield a module and those that contain it, up to the decoder."""
    while name:
        yield modules[name]
        if isinstance(modules[name], decoder):
            return
        name = name.rpartition(".")[0]
    yield modules[""]


def _passes_options(forward: Callable[..., Any]) -> bool:
    """Return whether a `forward` takes any named arguments and passes them to what attends, or to its layers."""
    rest = [one.name for one in inspect.signature(forward).parameters.values() if one.kind is one.VAR_KEYWORD]
    if not rest:
        return False
    function = syntax_of(forward)
    in_loops = {call for loop in ast.walk(function) if isinstance(loop, ast.For) for call in ast.walk(loop)}
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not any(ast.unparse(one) == f"**{rest[0]}" for one in call.keywords):
            continue
        if call in in_loops or "att" in ast.unparse(call.func).lower():
            return True
    return False
