"""Default masks, positions and rotary tables, made once and kept.

Each of these is a small launch at the start of every training step, when the GPU has nothing else to do. The kept
tensors are read-only by convention, and at most `LENGTHS` lengths are kept.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.report import UnknownCodeError

KNOWN_FULL = "_tilesmith_known_full"
"""Attribute of a mask that is true everywhere; reading the mask itself would wait for the GPU."""
LENGTHS = 8
CHANGING = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies depend on the length."""

Tables = tuple[Tensor, Tensor]

_tables: WeakKeyDictionary[nn.Module, dict[Any, Tables]] = WeakKeyDictionary()


def full_mask(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return a mask of [batch, tokens] that is true everywhere; `is_full` knows it."""
    one = _kept_true(device) if _may_be_kept() else torch.ones(1, 1, dtype=torch.bool, device=device)
    mask = one.expand(shape)
    setattr(mask, KNOWN_FULL, True)
    return mask


class _Traced:
    """What masks must know of the call of a decoder: decoders copy the mask, which loses attributes of the tensor."""

    has_full_mask = False


class _Running(threading.local):
    """The same for the calls of one thread; torch.compile does not trace these."""

    has_full_mask = False


_traced, _running = _Traced(), _Running()


def called_with_full_mask(forward: Callable[..., Any], decoder: Any, named: dict[str, Any]) -> Any:
    """Return forward(decoder, **named), where `full_mask` made the mask; `is_full` knows copies of it too."""
    if named.get("encoder_hidden_states") is not None:
        return forward(decoder, **named)
    state: Any = _traced if torch.compiler.is_compiling() else _running
    state.has_full_mask = True
    try:
        return forward(decoder, **named)
    finally:
        state.has_full_mask = False


def is_full(mask: Tensor | None) -> bool:
    """Return whether no key is masked: there is no mask, or `full_mask` made it."""
    if mask is None or hasattr(mask, KNOWN_FULL):
        return True
    return _traced.has_full_mask if torch.compiler.is_compiling() else _running.has_full_mask


def default_positions(length: int, device: torch.device) -> Tensor | None:
    """Return 0, 1, 2 … as [1, length]; None where no tensor may be kept and the model makes its own."""
    return _kept_positions(length, device) if _may_be_kept() else None


@functools.lru_cache(maxsize=LENGTHS)
def _kept_true(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, 1, dtype=torch.bool, device=device)


@functools.lru_cache(maxsize=LENGTHS)
def _kept_positions(length: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(length, device=device)[None]


def _may_be_kept() -> bool:
    """Return False while a CUDA graph is captured, which owns its memory, and while a tracer passes fake tensors."""
    return not must_be_dispatched() and not is_captured()  # in this order: a tracer cannot follow the second


def is_captured() -> bool:
    """Return whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def why_tables_change(rotary: Any) -> str | None:
    """Return why the tables depend on more than the positions, or None where they do not."""
    kind = getattr(rotary, "rope_type", None)
    if kind is None:
        raise UnknownCodeError(f"{type(rotary).__name__} has no rope_type")
    kinds = kind.values() if isinstance(kind, dict) else (kind,)
    changes = any(word in kind for kind in kinds for word in CHANGING)
    return "have frequencies that depend on the length" if changes else None


@functools.cache
def with_kept_tables(original: Callable[..., Tables]) -> Callable[..., Tables]:
    """Return a rotary embedding's `forward` that computes the tables of default positions once per length."""

    @functools.wraps(original)
    def forward(self: Any, x: Tensor, position_ids: Tensor, *others: Any, **named: Any) -> Tables:
        length = position_ids.shape[-1]
        if not _may_be_kept() or position_ids is not _kept_positions(length, position_ids.device):
            return original(self, x, position_ids, *others, **named)
        kept = _tables.setdefault(self, {})
        # Moving or changing the model gives the frequencies another address or version.
        frequencies = tuple((one.data_ptr(), one._version) for one in self.buffers())
        key = length, x.dtype, x.device, others, *named.items(), frequencies
        if key not in kept:
            if len(kept) >= LENGTHS:
                kept.clear()
            with torch.inference_mode(False):
                kept[key] = original(self, x, position_ids, *others, **named)
        return kept[key]

    return forward
