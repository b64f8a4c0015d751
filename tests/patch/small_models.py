"""Small models of every supported family, with parameters that make each part matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith.patch.parts.attention_module
import tilesmith.patch.parts.attention_registry
import tilesmith.patch.parts.feed_forward
import tilesmith.patch.parts.loss
import tilesmith.patch.parts.norms
import tilesmith.patch.parts.residual

transformers = pytest.importorskip("transformers", minversion="4.53")
CURRENT = int(transformers.__version__.split(".")[0]) >= 5
"""Whether transformers has its current shape; older releases write some families and encoders otherwise."""

VOCABULARY = 67
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma": ("GemmaConfig", "GemmaForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
}
OPERATORS = {
    "norm": ((tilesmith.patch.parts.norms, "rms_norm"), (tilesmith.patch.parts.residual, "add_rms_norm")),
    "rotary": (
        (tilesmith.patch.parts.attention_module, "rope"),
        (tilesmith.patch.parts.attention_module, "rms_norm_rope"),
    ),
    "mlp": ((tilesmith.patch.parts.feed_forward, "swiglu"), (tilesmith.patch.parts.feed_forward, "geglu")),
    "loss": ((tilesmith.patch.parts.loss, "linear_cross_entropy"),),
    "attention": ((tilesmith.patch.parts.attention_registry, "attention"),),
}
"""Where each part calls its operators."""


def config_of(family: str, **options: Any) -> Any:
    window: dict[str, Any] = {} if family in ("llama", "gemma") else {"sliding_window": 5}
    if family.startswith("qwen"):
        window |= {"use_sliding_window": True, "max_window_layers": 1}
    if family == "gemma2":
        window |= {"attn_implementation": "eager"}  # the default of some releases does not cap scores
    if family == "gemma3":
        window |= {"layer_types": ["sliding_attention", "full_attention"]}
    return getattr(transformers, CLASSES[family][0])(**{**SIZES, **window, **options})


def model_of(family: str, **options: Any) -> Any:
    """Return a float32 model, the same at every call."""
    model = getattr(transformers, CLASSES[family][1])(config_of(family, **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.8 + 0.2 * noise)
    return model


def batch(*, padded: bool = False, length: int = 12) -> dict[str, Tensor]:
    """Return tokens with labels, some of them ignored; padded on the left in one row, on the right in another."""
    tokens = torch.randint(3, VOCABULARY, (3, length), generator=torch.Generator().manual_seed(2))
    labels = tokens.clone()
    labels[:, 4] = -100
    if not padded:
        return {"input_ids": tokens, "labels": labels}
    present = torch.ones_like(tokens)
    present[0, :3] = 0
    present[1, -2:] = 0
    # Predictions from padding are undefined, so the label of the first token after padding is ignored too.
    labels[0, :4] = -100
    labels[1, -2:] = -100
    return {"input_ids": tokens, "attention_mask": present, "labels": labels}


def found(model: Any, **inputs: Any) -> dict[str, Tensor]:
    """Return the training loss and the gradient of every parameter, by name."""
    model.train()
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss.detach(), **{name: gradient.clone() for name, gradient in gradients.items()}}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Assert that each tensor's error is below `tolerance` of its norm."""
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        error = (ours[name] - wanted).norm() / wanted.norm()
        assert error < tolerance, f"{name} has an error of {error:.2e} of its norm"


@contextmanager
def counted_calls() -> Iterator[dict[str, int]]:
    """Count the calls of each part's operators within the block."""
    counts = dict.fromkeys(OPERATORS, 0)

    def counting(part: str, operator: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[part] += 1
            return operator(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for part, places in OPERATORS.items():
            for module, name in places:
                patched.setattr(module, name, counting(part, getattr(module, name)))
        yield counts
