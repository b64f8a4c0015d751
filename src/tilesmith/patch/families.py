"""The model families of transformers that `patch` supports, and their differences."""

from __future__ import annotations

import re
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
    attention: str = "Attention"
    """The name, without the prefix, of the class that attends."""
    mlp: str = "MLP"
    """The name of the class of feed-forward blocks; empty where a block is no module of its own."""
    experts: bool = False
    """Whether all blocks are mixtures of experts."""
    projects: bool = True
    """Whether the class that attends has the projection after attention too."""
    rotates: bool = True
    """Whether q and k are rotated by their positions."""
    tables: str = "RotaryEmbedding"
    """The name, without the prefix, of the class that makes cosines and sines."""
    head: str = "ForCausalLM"
    """The name, without the prefix, of the class with the loss over a vocabulary."""
    masked: tuple[str, str] | None = None
    """For a model of masked tokens: the modules before the logits and of the logits."""
    tried: bool = False
    """Norms and rotations are tried on random numbers, because their code differs from Llama's or is unknown."""
    known: bool = True
    """Whether the family has an entry here; else all is found by structure."""
    foreign: bool = False
    """Whether the model is not transformers' own: only norms and feed-forward blocks are found."""
    note: str = ""
    """What the documentation says about the family beyond its parts."""

    @property
    def modeling(self) -> Any:
        """The module of transformers that defines the family."""
        return import_module(f"transformers.models.{self.folder}.modeling_{self.folder}")

    def of(self, name: str) -> type[nn.Module]:
        """Return the class whose name is the prefix and this name, or this name; UnknownCodeError without one."""
        found: type[nn.Module] | None = getattr(self.modeling, self.prefix + name, getattr(self.modeling, name, None))
        if found is None:
            missing = f"no class {self.prefix}{name}"
            if self.known:
                raise UnknownCodeError(f"this release of transformers has {missing}")
            raise UnknownCodeError(f"transformers has {missing}, where Tilesmith looks for this part")
        return found


FAMILIES = {
    "llama": Family("llama", "Llama"),
    "llama4_text": Family(
        "llama4", "Llama4", attention="TextAttention", mlp="TextMLP", decoder="TextModel",
        tables="TextRotaryEmbedding", tried=True, note="all but the experts; complex numbers rotate",
    ),
    "mistral": Family("mistral", "Mistral"),
    "qwen2": Family("qwen2", "Qwen2"),
    "qwen3": Family("qwen3", "Qwen3"),
    "gemma": Family("gemma", "Gemma", gemma_norm=True, note="GELU in the blocks"),
    "gemma2": Family("gemma2", "Gemma2", gemma_norm=True, note="as Gemma; capped logits"),
    "gemma3_text": Family("gemma3", "Gemma3", gemma_norm=True, decoder="TextModel", note="as Gemma"),
    "granite": Family("granite", "Granite", tried=True, note="scaled logits"),
    "olmo2": Family("olmo2", "Olmo2", tried=True, note="norms after the branches"),
    "olmo3": Family("olmo3", "Olmo3", tried=True, note="norms after the branches"),
    "glm": Family("glm", "Glm", tried=True, note="half of each head rotates, by neighbours"),
    "glm4": Family("glm4", "Glm4", tried=True, note="half of each head rotates, by neighbours"),
    "cohere": Family("cohere", "Cohere", tried=True, note="layer norm, scaled logits, rotation by neighbours"),
    "cohere2": Family("cohere2", "Cohere2", tried=True, note="layer norm, scaled logits, rotation by neighbours"),
    "starcoder2": Family("starcoder2", "Starcoder2", tried=True, note="layer norm; GELU in the blocks, no gate"),
    "smollm3": Family("smollm3", "SmolLM3", tried=True, note="some layers do not rotate"),
    "phi3": Family("phi3", "Phi3", tried=True, note="one layer for q, k and v, one for gate and up"),
    "mixtral": Family("mixtral", "Mixtral", mlp="", experts=True, tried=True, note="all but the experts"),
    "qwen3_moe": Family("qwen3_moe", "Qwen3Moe", tried=True, note="all but the experts"),
    "gpt_oss": Family(
        "gpt_oss", "GptOss", mlp="", experts=True, tried=True,
        note="all but the experts; PyTorch computes attention with sinks",
    ),
    "gpt_neox": Family("gpt_neox", "GPTNeoX", tried=True, note="layer norm; GELU in the blocks, no gate"),
    "gpt2": Family("gpt2", "GPT2", head="LMHeadModel", rotates=False, tried=True, note="as GPTNeoX; no rotation"),
    "qwen2_vl": Family(
        "qwen2_vl", "Qwen2VL", mlp="Qwen2MLP", decoder="TextModel", head="ForConditionalGeneration", tried=True,
        note="the language part; its loss is left to transformers",
    ),
    "modernbert": Family(
        "modernbert", "ModernBert", head="ForMaskedLM", masked=("head", "decoder"), tried=True,
        note="encoder: layer norm, GeGLU, windows to both sides, masked tokens",
    ),
    "bert": Family(
        "bert", "Bert", attention="SelfAttention", mlp="", projects=False, rotates=False, head="ForMaskedLM",
        masked=("cls.predictions.transform", "cls.predictions.decoder"), tried=True,
        note="encoder: layer norm, masked tokens; blocks left to transformers",
    ),
}  # fmt: skip
"""The families by their configurations' `model_type`. A model of another family is patched where it is recognised."""


WRAPPERS = {
    "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine",
    "OptimizedModule", "PeftModel",
}  # fmt: skip
"""The classes that wrap a model: `patch` takes the model inside, before it is wrapped."""


def families_table() -> str:
    """Return the families as the table of docs/patch.md."""
    rows = [f"| {family.prefix} | `{name}` | {family.note} |" for name, family in FAMILIES.items()]
    return "\n".join(["| family | `model_type` | beside Llama |", "|---|---|---|", *rows])


def family_of(model: object) -> Family:
    """Return the family of a model; TypeError or ValueError for a wrapper around a model, and for other objects."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model is a {type(model).__name__}, but must be a Hugging Face model")
    if any(kind.__name__ in WRAPPERS for kind in type(model).__mro__):
        raise _wrapped(model, "a model")
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        family = _by_structure(model)
    if family is not None and isinstance(model, family.of("PreTrainedModel")):
        return family
    if any(_by_structure(module) for module in model.modules()):
        raise _wrapped(model, "a model of transformers")
    return Family("", "", tried=True, known=False, foreign=True)


def _wrapped(model: nn.Module, inside: str) -> ValueError:
    return ValueError(
        f"patch: model is a {type(model).__name__} around {inside}; "
        "patch a model before it is wrapped, or patch the model inside the wrapper"
    )


def _by_structure(model: nn.Module) -> Family | None:
    """Return the family of a model that has no entry: its base class in transformers names folder and prefix."""
    for kind in type(model).__mro__:
        match = re.fullmatch(r"transformers\.models\.(\w+)\.modeling_\1", kind.__module__)
        if match and kind.__name__.endswith("PreTrainedModel"):
            return Family(match[1], kind.__name__.removesuffix("PreTrainedModel"), tried=True, known=False)
    return None
