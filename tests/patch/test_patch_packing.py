"""Packed sequences and static caches run on our attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from small_models import VOCABULARY, assert_same, found, model_of
from torch import Tensor

from tilesmith.patch import patch
from tilesmith.patch.parts import attention_registry

registry: Any = attention_registry

LENGTHS = (5, 9, 2)
if not hasattr(import_module("transformers.masking_utils"), "find_packed_sequence_indices"):
    pytest.skip("this release of transformers does not look for packed sequences", allow_module_level=True)


def packed_batch() -> tuple[Tensor, Tensor]:
    """Return tokens and positions of one row that holds several sequences."""
    tokens = torch.randint(3, VOCABULARY, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(3))
    return tokens, torch.cat([torch.arange(length) for length in LENGTHS])[None]


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("the fallback was called")


@pytest.fixture
def varlen_calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The starts of the sequences, for each call of attention over packed sequences."""
    calls: list[Tensor] = []
    operator = registry.attention_varlen

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments[3])
        return operator(*arguments, **named)

    monkeypatch.setattr(registry, "attention_varlen", counted)
    return calls


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen3"])
def test_sequences_packed_by_positions_match_transformers(family: str, varlen_calls: list[Tensor]) -> None:
    """The window of five is shorter than the second sequence."""
    tokens, positions = packed_batch()
    inputs = {"input_ids": tokens, "labels": tokens, "position_ids": positions, "use_cache": False}
    wanted = found(model_of(family), **inputs)
    ours = found(patch(model_of(family)), **inputs)
    assert_same(ours, wanted, 2e-5)
    assert [one.tolist() for one in varlen_calls] == [[0, 5, 14, 16]] * 2


def test_rows_of_several_packed_sequences_match_transformers(varlen_calls: list[Tensor]) -> None:
    tokens, positions = packed_batch()
    tokens, other = torch.cat((tokens, tokens.flip(1))), torch.arange(sum(LENGTHS))[None]
    inputs = {"input_ids": tokens, "labels": tokens, "position_ids": torch.cat((positions, other)), "use_cache": False}
    assert_same(found(patch(model_of("llama")), **inputs), found(model_of("llama"), **inputs), 2e-5)
    assert varlen_calls[0].tolist() == [0, 5, 14, 16, 32]


def test_positions_that_do_not_restart_are_not_packed(varlen_calls: list[Tensor]) -> None:
    tokens, _ = packed_batch()
    positions = torch.arange(tokens.shape[1])[None]
    inputs = {"input_ids": tokens, "labels": tokens, "position_ids": positions, "use_cache": False}
    assert_same(found(patch(model_of("llama")), **inputs), found(model_of("llama"), **inputs), 2e-5)
    assert not varlen_calls


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_given_starts_of_sequences_are_used(family: str, alone: bool, varlen_calls: list[Tensor]) -> None:
    """As DataCollatorWithFlattening gives them for FlashAttention; alone, they say the positions too."""
    tokens, positions = packed_batch()
    starts = torch.tensor([0, 5, 14, 16], dtype=torch.int32)
    inputs = {"input_ids": tokens, "labels": tokens, "position_ids": positions, "use_cache": False}
    wanted = found(model_of(family), **inputs)
    if alone:
        del inputs["position_ids"]
    ours = found(patch(model_of(family)), **inputs, cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=9)
    assert_same(ours, wanted, 2e-5)
    assert all(one is starts for one in varlen_calls)
    assert varlen_calls


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_static_cache_runs_on_our_attention(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, _ = packed_batch()
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    theirs = model_of(family).eval().generate(tokens, **options)
    model = patch(model_of(family).eval())
    attentions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    name = model.config._attn_implementation
    monkeypatch.setitem(attentions._global_mapping, name, _without_fallback(attentions[name]))
    assert torch.equal(model.generate(tokens, **options), theirs)


def _without_fallback(function: Any) -> Any:
    def attend(*arguments: Any, **named: Any) -> Any:
        return registry.attention_of_module(never, *arguments, **named)

    return attend
