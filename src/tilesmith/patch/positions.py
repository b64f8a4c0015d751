"""What every step of a training begins with, and need not compute again: that all tokens are there, in which places,
and the cosines and sines of these.

Each of these is a small launch, and at the beginning of a step the GPU waits for them one by one. So they are kept:
tensors that nobody writes to, for as many lengths as were asked for last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tilesmith.ops.runtime.kernels import must_be_dispatched

ALL_THERE = "_tilesmith_all_there"
"""Attribute of a mask that is known to be true everywhere, without looking."""
LENGTHS = 8
CHANGING = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies follow the length."""

Tables = tuple[Tensor, Tensor]

_tables: WeakKeyDictionary[nn.Module, dict[Any, Tables]] = WeakKeyDictionary()


def all_there(shape: tuple[int, int], device: torch.device) -> Tensor:
    """A mask of [batch, tokens] that is true everywhere, and is known to be."""
    if torch.compiler.is_compiling():
        return torch.ones(shape, dtype=torch.bool, device=device)
    one = _kept_true(device) if _may_be_kept() else torch.ones(1, 1, dtype=torch.bool, device=device)
    mask = one.expand(shape)
    setattr(mask, ALL_THERE, True)
    return mask


def places(length: int, device: torch.device) -> Tensor | None:
    """0, 1, 2 … as [1, length]; None where it must not be kept, and the model shall make it itself."""
    return _kept_places(length, device) if _may_be_kept() else None


@functools.lru_cache(maxsize=LENGTHS)
def _kept_true(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, 1, dtype=torch.bool, device=device)


@functools.lru_cache(maxsize=LENGTHS)
def _kept_places(length: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(length, device=device)[None]


def _may_be_kept() -> bool:
    """Memory of a captured graph is the graph's, and what a tracer sees is no tensor."""
    captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return not captured and not torch.compiler.is_compiling() and not must_be_dispatched()


def has_changing_frequencies(rotary: Any) -> bool:
    """Whether its tables follow from more than the places."""
    kinds = rotary.rope_type.values() if isinstance(rotary.rope_type, dict) else (rotary.rope_type,)
    return any(word in kind for kind in kinds for word in CHANGING)


@functools.cache
def with_kept_tables(original: Callable[..., Tables]) -> Callable[..., Tables]:
    """A rotary embedding's `forward` that computes the tables of places that are always the same only once."""

    @functools.wraps(original)
    def forward(self: Any, x: Tensor, position_ids: Tensor, *others: Any) -> Tables:
        length = position_ids.shape[-1]
        if not _may_be_kept() or position_ids is not _kept_places(length, position_ids.device):
            return original(self, x, position_ids, *others)
        kept = _tables.setdefault(self, {})
        # The frequencies are another tensor, or another version of it, if the model has been moved or changed since.
        frequencies = tuple((one.data_ptr(), one._version) for one in self.buffers())
        key = length, x.dtype, x.device, others, frequencies
        if key not in kept:
            if len(kept) >= LENGTHS:
                kept.clear()
            with torch.inference_mode(False):
                kept[key] = original(self, x, position_ids, *others)
        return kept[key]

    return forward
