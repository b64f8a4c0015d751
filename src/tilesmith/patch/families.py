"""The models of transformers that are known, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Family:
    """Models whose classes are in one module of transformers and begin with the same word."""

    folder: str
    prefix: str
    gemma_norm: bool = False
    """The norm multiplies by 1 + weight and rounds only after that."""
    decoder: str = "Model"
    """The class of what lies under the head, less the prefix."""

    @property
    def modeling(self) -> Any:
        """The module in which transformers defines it."""
        return import_module(f"transformers.models.{self.folder}.modeling_{self.folder}")

    def of(self, name: str) -> type[nn.Module]:
        """The class of that name, less the prefix."""
        found: type[nn.Module] = getattr(self.modeling, self.prefix + name)
        return found


FAMILIES = {
    "llama": Family("llama", "Llama"),
    "mistral": Family("mistral", "Mistral"),
    "qwen2": Family("qwen2", "Qwen2"),
    "qwen3": Family("qwen3", "Qwen3"),
    "gemma": Family("gemma", "Gemma", gemma_norm=True),
    "gemma2": Family("gemma2", "Gemma2", gemma_norm=True),
    "gemma3_text": Family("gemma3", "Gemma3", gemma_norm=True, decoder="TextModel"),
}
"""By what their configurations call `model_type`."""


def family_of(model: object) -> Family:
    """The family of a model; refuses what is in none."""
    known = f"known are transformers' models of type {', '.join(FAMILIES)}"
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model is a {type(model).__name__}, but must be a Hugging Face model; {known}")
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        found = type(model).__name__ + (f" of type {model_type!r}" if model_type else "")
        raise ValueError(f"patch: model is a {found}, which is not known; {known}")
    if not isinstance(model, family.of("PreTrainedModel")):
        raise ValueError(
            f"patch: model is a {type(model).__name__}, which is not transformers' own {family.prefix} model; "
            "patch a model before it is wrapped, or the one inside the wrapper"
        )
    return family
