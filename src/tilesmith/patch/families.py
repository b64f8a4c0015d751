"""The model families of transformers that `patch` supports, and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from tilesmith.patch.report import UnknownCodeError


@dataclass(frozen=True)
class Family:
    """Models whose classes are in one module of transformers and share a prefix."""

    folder: str
    prefix: str
    gemma_norm: bool = False
    """The norm multiplies by 1 + weight and rounds only after that."""
    decoder: str = "Model"
    """The name, without the prefix, of the class under the head."""

    @property
    def modeling(self) -> Any:
        """The module of transformers that defines the family."""
        return import_module(f"transformers.models.{self.folder}.modeling_{self.folder}")

    def of(self, name: str) -> type[nn.Module]:
        """Return the class whose name is the prefix and this name; UnknownCodeError where there is none."""
        found: type[nn.Module] | None = getattr(self.modeling, self.prefix + name, None)
        if found is None:
            raise UnknownCodeError(f"this release of transformers has no class {self.prefix}{name}")
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
"""The families by their configurations' `model_type`."""


def family_of(model: object) -> Family:
    """Return the family of a model; TypeError or ValueError where it has none."""
    supported = f"supported are transformers' models of type {', '.join(FAMILIES)}"
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model is a {type(model).__name__}, but must be a Hugging Face model; {supported}")
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        found = type(model).__name__ + (f" of type {model_type!r}" if model_type else "")
        raise ValueError(f"patch: model is a {found}, which is not supported; {supported}")
    if not isinstance(model, family.of("PreTrainedModel")):
        raise ValueError(
            f"patch: model is a {type(model).__name__}, which is not transformers' own {family.prefix} model; "
            "patch a model before it is wrapped, or patch the model inside the wrapper"
        )
    return family
