"""Encoders, and the language part of a model of images: loss and every gradient stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import CURRENT, SIZES, VOCABULARY, assert_same, counted_calls, transformers

from tilesmith.patch import patch, report, unpatch

OPTIONS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "modernbert": (
        "ModernBert",
        {"local_attention": 8, "num_hidden_layers": 3, "attention_dropout": 0.0, "cls_token_id": 1, "sep_token_id": 2},
        {"norm", "rotary", "mlp", "loss", "attention"},
    ),
    "bert": (
        "Bert",
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        {"norm", "loss", "attention"},
    ),
}


def randomised(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.8 + 0.2 * noise)
    return model


def encoder(name: str) -> Any:
    prefix, options, _ = OPTIONS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **options})
    return randomised(getattr(transformers, f"{prefix}ForMaskedLM")(config))


def masked_batch(padded: bool) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY, (3, 14), generator=torch.Generator().manual_seed(2))
    labels = torch.where(torch.arange(14) % 3 == 0, tokens, -100)
    if not padded:
        return {"input_ids": tokens, "labels": labels}
    present = torch.ones_like(tokens)
    present[1, -5:] = 0
    labels[1, -5:] = -100
    return {"input_ids": tokens, "attention_mask": present, "labels": labels}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradients_of_an_encoder_stay_the_same(name: str, padded: bool) -> None:
    inputs = masked_batch(padded)
    wanted = found_where_trained(encoder(name), **inputs)
    model = patch(encoder(name))
    with counted_calls() as calls:
        ours = found_where_trained(model, **inputs)
    left = set() if CURRENT else {"attention", "rotary"}
    assert set(report(model).swapped) == OPTIONS[name][2] - left
    assert calls["attention"] == (model.config.num_hidden_layers if CURRENT else 0)
    assert_same(ours, wanted, 3e-5)
    unpatch(model)
    assert_same(found_where_trained(model, **inputs), wanted, 1e-12)


def found_where_trained(model: Any, **inputs: Any) -> dict[str, torch.Tensor]:
    """Return loss and gradients without those that are zero but for rounding: softmax ignores a bias of all keys."""
    for name, parameter in model.named_parameters():
        if name.endswith("key.bias") or "pooler" in name:
            parameter.requires_grad_(False)
    model.train().zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("name", OPTIONS)
def test_logits_of_an_encoder_stay_the_same_in_evaluation(name: str) -> None:
    inputs = masked_batch(padded=True)
    with torch.no_grad():
        theirs, ours = encoder(name).eval()(**inputs), patch(encoder(name).eval())(**inputs)
    present = inputs["attention_mask"].bool()
    torch.testing.assert_close(ours.logits[present], theirs.logits[present], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.loss, theirs.loss)


def test_language_part_of_qwen2_vl_stays_the_same() -> None:
    def model() -> Any:
        rotation = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
        text = {**SIZES, "rope_parameters" if CURRENT else "rope_scaling": rotation}
        vision = {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2}
        tokens = {"vision_start_token_id": 60, "image_token_id": 61, "video_token_id": 62}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
        made = transformers.Qwen2VLForConditionalGeneration(config)
        made.config.vocab_size = VOCABULARY  # the loss of 4.53 looks here
        made.model.visual.requires_grad_(False)
        return randomised(made)

    tokens = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(2))
    wanted = found_where_trained(model(), input_ids=tokens, labels=tokens)
    patched = patch(model())
    with counted_calls() as calls:
        ours = found_where_trained(patched, input_ids=tokens, labels=tokens)
    if CURRENT:  # older releases rotate in another way
        assert {"norm", "rotary", "mlp", "attention"} <= set(report(patched).swapped)
        assert calls["rotary"] == 2
    assert calls["attention"] == calls["mlp"] == 2
    assert_same(ours, wanted, 3e-5)
    before = patched.model.language_model.config._attn_implementation
    unpatch(patched)
    assert before.startswith("tilesmith_")
    assert patched.model.language_model.config._attn_implementation == "sdpa"


def test_report_says_that_norms_of_bert_lie_deeper_in_its_layers() -> None:
    reason = report(patch(encoder("bert"))).not_fused["residual"]
    assert reason.startswith("no layer holds a norm with a weight itself; ")
