"""The model of a proof: a small one of a family, or one that a configuration of Hugging Face describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import nn

from tilesmith.patch.families import FAMILIES
from tilesmith.training.running.run import memory_problem

SECONDS_TO_ANSWER = 3.0
"""How long Hugging Face may take to answer; after that, only files of this machine are read."""
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""Sizes of a small model; a configuration that has no such size keeps the number as a spare attribute."""
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "gpt_oss": EXPERTS,
}
"""Sizes that some families need beside those."""
SMALL_FAMILIES = tuple(name for name in FAMILIES if name != "qwen2_vl")
"""The families with a small model; Qwen2-VL also needs a configuration of its images."""


class SubjectError(ValueError):
    """The model cannot be made; the message is one line for the user."""


@dataclass(frozen=True)
class Subject:
    """The model to train.

    `name` is a family of `patch`, for a small model of it, or else a name, folder or file that
    transformers.AutoConfig.from_pretrained takes. `changes` are set in the configuration. With `pretrained`, weights
    are read from the same name or folder; else they are random.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False

    def configuration(self) -> Any:
        """Return the configuration, without dropout: two implementations drop different elements."""
        transformers = _transformers()
        if self.name in SMALL_FAMILIES:
            if self.pretrained:
                raise SubjectError(f"{self.name} names a small model of a family, which has no pretrained weights")
            config = transformers.AutoConfig.for_model(self.name)
        else:
            config = self._read(transformers.AutoConfig)
        for name in self.changes:
            if name not in SMALL and not hasattr(config, name):
                raise SubjectError(f"the configuration of {self.name} has no {name}")
        try:
            if self.name in SMALL_FAMILIES:
                others = {other for other, name in config.attribute_map.items() if name in self.changes}
                small = {**SMALL, **OTHER_SIZES.get(self.name, {})}
                sizes = {**{name: size for name, size in small.items() if name not in others}, **self.changes}
                width, heads = sizes.get("hidden_size"), sizes.get("num_attention_heads")
                if "head_dim" not in self.changes and isinstance(width, int) and isinstance(heads, int) and heads > 0:
                    sizes["head_dim"] = width // heads  # the rotation of some models reads this spare number
                config = transformers.AutoConfig.for_model(self.name, **sizes)
            else:
                for name, value in self.changes.items():
                    setattr(config, name, value)
        except Exception as error:  # each configuration checks its values in a way of its own
            raise SubjectError(f"the configuration of {self.name} refuses --set: {_last_line(error)}") from error
        for name, value in list(vars(config).items()):
            if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
                setattr(config, name, 0.0)
        if getattr(config, "attn_logit_softcapping", None) is not None:
            config._attn_implementation = "eager"  # PyTorch's attention does not cap scores
        return config

    def _read(self, auto: Any) -> Any:
        # Without this question transformers asks an absent network again and again, for half a minute.
        is_reachable = Path(self.name).exists() or _answers(_endpoint())
        try:
            return auto.from_pretrained(self.name, local_files_only=not is_reachable)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if is_reachable else f"{_endpoint()} does not answer"
            if Path(self.name).exists():
                raise SubjectError(f"{self.name} is no configuration of Hugging Face: {reason}") from error
            meant = [f"; did you mean {one}?" for one in get_close_matches(self.name, SMALL_FAMILIES, 1)]
            raise SubjectError(
                f"{self.name} is neither a family ({', '.join(SMALL_FAMILIES)}) nor a configuration of Hugging Face: "
                f"{reason}{''.join(meant)}"
            ) from error

    def model(self, config: Any, seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Return the model for training; the same seed gives the same weights."""
        transformers = _transformers()
        auto = transformers.AutoModelForMaskedLM if is_masked(config) else transformers.AutoModelForCausalLM
        torch.manual_seed(seed)
        try:
            if not self.pretrained:
                with torch.device("meta"):
                    problem = memory_problem(sum(one.nbytes for one in auto.from_config(config).parameters()))
                if problem:
                    raise SubjectError(problem)
            if self.pretrained:
                model = auto.from_pretrained(self.name, config=config, dtype=dtype).to(device)
            else:
                with torch.device(device):
                    model = auto.from_config(config).to(dtype)
        except (SubjectError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # each model checks its sizes in a way of its own
            raise SubjectError(f"cannot make {self.name}: {_last_line(error)}") from error
        trained: nn.Module = model.train()
        return trained


def _last_line(error: Exception) -> str:
    """Return the last line of an error's message, where checks of a configuration name the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def is_masked(config: Any) -> bool:
    """Return whether models of this configuration predict masked tokens, not the next ones."""
    family = FAMILIES.get(config.model_type)
    return family is not None and family.masked is not None


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _answers(address: str) -> bool:
    """Return whether a server answers within `SECONDS_TO_ANSWER`. A thread asks: a name lookup has no time limit."""
    answers: Queue[bool] = Queue()

    def ask() -> None:
        try:
            urlopen(Request(address, method="HEAD"), timeout=SECONDS_TO_ANSWER).close()
        except HTTPError:
            answers.put(True)  # a server that refuses is there
        except (OSError, ValueError):
            answers.put(False)
        else:
            answers.put(True)

    Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=SECONDS_TO_ANSWER)
    except Empty:
        return False


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SubjectError("prove needs the package transformers: pip install '.[hf]' in a clone") from error
    return transformers
