"""What `patch` reports: every part and every fusion, made or not made, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import CLASSES, CURRENT, assert_same, batch, found, model_of, transformers
from torch import Tensor, nn

from tilesmith.patch import Report, patch, report
from tilesmith.patch.report import FUSIONS, _warn_once

LAYERS = 2
MODELING = "transformers.models.llama.modeling_llama"


def report_of(model: nn.Module) -> Report:
    done: Report | None = report(patch(model))
    assert done is not None
    return done


def other_norm(self: Any, hidden_states: Tensor) -> Tensor:
    scaled: Tensor = hidden_states * self.scale
    return scaled


def other_layer(self: Any, hidden_states: Tensor, **others: Any) -> Tensor:
    normal = self.input_layernorm(hidden_states)
    hidden_states = hidden_states + self.self_attn(normal, **others)[0]
    branch: Tensor = self.mlp(self.post_attention_layernorm(hidden_states))
    return hidden_states + branch


def other_attention(self: Any, hidden_states: Tensor, **others: Any) -> tuple[Tensor, None]:
    return hidden_states + self.o_proj(self.q_proj(hidden_states)), None


def other_block(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.down_proj(self.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))
    return result


def other_decoder(self: Any, tokens: Tensor) -> Tensor:
    return tokens


def other_causal(self: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    return input_ids


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__qualname__ = name
    return function


@pytest.fixture(autouse=True)
def _forget_warnings() -> None:
    _warn_once.cache_clear()


@pytest.mark.parametrize("family", CLASSES)
def test_installed_transformers_is_recognised_for_every_family(family: str, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(family, tie_word_embeddings=False)
    tables = sum(type(module).__name__.endswith("RotaryEmbedding") for module in model.modules())
    done = report_of(model)
    assert done.unrecognised == []
    assert done.not_fused == {}
    qk_norm = {"qk norm": LAYERS} if family in ("qwen3", "gemma3") else {}
    assert done.fused == {
        "residual": LAYERS, "qkv projections": LAYERS, "output projection": LAYERS, "rotary tables": tables,
        "default positions": 1, **qk_norm,
    }  # fmt: skip
    assert not caplog.records


WRITTEN_DIFFERENTLY = {
    "norm": ("LlamaRMSNorm", other_norm, "norm"),
    "residual": ("LlamaDecoderLayer", other_layer, "residual"),
    "rotary": ("LlamaAttention", other_attention, "rotary"),
    "attention": ("LlamaAttention", other_attention, "attention"),
    "qkv projections": ("LlamaAttention", other_attention, "qkv projections"),
    "output projection": ("LlamaAttention", other_attention, "output projection"),
    "mlp": ("LlamaMLP", other_block, "mlp"),
    "loss": ("LlamaForCausalLM", other_causal, "loss"),
    "default positions": ("LlamaModel", other_decoder, "default positions"),
}


@pytest.mark.parametrize(("kind", "forward", "name"), WRITTEN_DIFFERENTLY.values(), ids=WRITTEN_DIFFERENTLY)
def test_module_written_differently_is_reported_by_name(
    kind: str,
    forward: Callable[..., Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of("llama")
    monkeypatch.setattr(f"{MODELING}.{kind}.forward", named(forward, f"{kind}.forward"))
    done = report_of(model)
    reason = (done.left | done.not_fused)[name]
    assert reason.startswith(f"{kind}.forward is written differently from what this version of Tilesmith knows")
    assert name in done.unrecognised
    assert name not in done.swapped | done.fused
    assert f"{name} {'not fused' if name in FUSIONS else 'left to transformers'}: {reason}" in str(done)
    assert f"patch: LlamaForCausalLM: {name}: {reason}" in caplog.messages


@pytest.mark.parametrize(("kind", "name"), [("RMSNorm", "norm"), ("RotaryEmbedding", "rotary tables"), ("MLP", "mlp")])
def test_class_that_transformers_does_not_have_is_reported_by_name(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama")
    monkeypatch.delattr(f"{MODELING}.Llama{kind}")
    done = report_of(model)
    assert f"this release of transformers has no class Llama{kind}" in (done.left | done.not_fused)[name]
    assert name in done.unrecognised


def test_missing_attention_class_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    monkeypatch.delattr(f"{MODELING}.LlamaAttention")
    done = report(patch(model, rotary=False))
    assert done is not None
    assert done.unrecognised == ["attention"]


@pytest.mark.skipif(not CURRENT, reason="layers returned tuples")
def test_decoder_layer_written_differently_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, patched = model_of("llama"), model_of("llama")
    monkeypatch.setattr(f"{MODELING}.LlamaDecoderLayer.forward", other_layer)
    patch(patched)
    assert "forward" not in vars(patched.model.layers[0])
    assert_same(found(patched, **batch()), found(plain, **batch()))


def test_warning_is_logged_once_per_process(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(f"{MODELING}.LlamaDecoderLayer.forward", other_layer)
    patch(model_of("llama"))
    patch(model_of("llama"))
    assert [(record.name, record.levelno) for record in caplog.records] == [("tilesmith.patch", logging.WARNING)]


def test_switched_off_parts_report_and_warn_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{MODELING}.LlamaDecoderLayer.forward", other_layer)
    monkeypatch.setattr(f"{MODELING}.LlamaAttention.forward", other_attention)
    done = report(patch(model_of("llama"), norm=False, rotary=False, attention=False))
    assert done is not None
    assert done.left == done.not_fused == {}
    assert not caplog.records


def test_limits_of_the_operators_are_reported_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    done = report_of(model_of("llama", hidden_act="relu"))
    assert done.left == {
        "mlp": "2 of 2 LlamaMLP modules have the activation ReLU, and the operators SiLU and GELU only"
    }
    assert "mlp left to transformers" in str(done)
    assert not caplog.records


def test_layer_with_its_own_forward_is_reported_as_not_fused() -> None:
    model = model_of("llama")
    model.model.layers[0].forward = model.model.layers[0].forward
    done = report_of(model)
    assert done.fused["residual"] == 1
    assert done.not_fused["residual"].startswith("1 of 2 LlamaDecoderLayer modules have a forward of their own; ")


def test_rotary_tables_that_depend_on_the_length_are_reported() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    done = report_of(model_of("llama", rope_scaling=scaling))
    assert "have frequencies that depend on the length" in done.not_fused["rotary tables"]
    assert done.unrecognised == []


def test_tied_embedding_is_reported() -> None:
    assert report_of(model_of("llama", tie_word_embeddings=True)).fused["tied embedding"] == 1
    assert report_of(model_of("gemma3", tie_word_embeddings=True)).fused["tied embedding"] == 1
    other = model_of("llama", tie_word_embeddings=True)
    other.model.embed_tokens.__class__ = type("Other", (torch.nn.Embedding,), {})
    reason = report_of(other).not_fused["tied embedding"]
    assert reason.startswith("Other is more than torch's own embedding; ")


def test_model_without_vocabulary_reports_its_loss_as_left() -> None:
    done = report_of(transformers.LlamaModel(model_of("llama").config))
    assert done.left == {"loss": "LlamaModel has no loss over a vocabulary"}


def test_report_of_an_image_model_blames_no_release() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    done = report_of(transformers.ViTForImageClassification(config))
    assert done.left["rotary"] == "ViTAttention does not rotate q and k"
    assert done.left["loss"] == "ViTForImageClassification has no loss over a vocabulary"
    assert "default positions" not in {**done.fused, **done.not_fused}
    assert not {"rotary", "loss", "default positions"} & set(done.unrecognised)


def test_loss_that_is_not_known_is_not_called_absent() -> None:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = transformers.BartConfig(**layers, d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=67)
    done = report_of(transformers.BartForConditionalGeneration(config))
    assert done.left["loss"] == "Tilesmith does not know the loss of BartForConditionalGeneration"
    assert done.left["mlp"] == "transformers has no class BartMLP, where Tilesmith looks for this part"


@pytest.mark.parametrize("alibi", [True, False])
def test_rotation_is_reported_only_for_models_that_rotate(alibi: bool) -> None:
    sizes = {"vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    done = report_of(transformers.FalconForCausalLM(transformers.FalconConfig(**sizes, alibi=alibi)))
    if alibi:
        assert done.left["rotary"] == "FalconAttention does not rotate q and k"
        assert "rotary" not in done.swapped
        assert "rotary tables" not in done.fused
    else:
        assert done.swapped["rotary"] == 2
