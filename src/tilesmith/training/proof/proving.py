"""The three runs of a proof: unpatched, patched, and unpatched with other rounding."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tilesmith.ops.runtime.dispatch import use
from tilesmith.patch import patch, report
from tilesmith.training.data.tokens import MarkovChain, TextBytes, TokenSource
from tilesmith.training.proof.other_rounding import round_differently
from tilesmith.training.proof.subject import Subject, SubjectError, is_masked
from tilesmith.training.proof.training_run import TrainingRun, on_cpu, trained
from tilesmith.training.proof.verdict import differences
from tilesmith.training.running.options import LARGEST_SEED

SCHEMA = 1
MOST_TOKENS = 1024
"""The chain of tokens has at most this many; a larger vocabulary only makes the head larger."""
UNPATCHED, PATCHED, OTHER = "unpatched", "patched", "unpatched, other rounding"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """How a proof trains. Without `dtype` it is bfloat16 on a GPU and float32 on a CPU."""

    steps: int = 200
    batch_size: int = 4
    seq_len: int = 64
    learning_rate: float = 3e-4
    dtype: str | None = None
    seed: int = 0
    data: Path | None = None
    interpret: bool = False


def prove(
    subject: Subject, settings: Settings, progress: Callable[[str, int], None] = lambda run, step: None
) -> dict[str, Any]:
    """Return the proof in the format of `tilesmith prove --json`, without its provenance.

    Every run starts from the same weights and sees the same batches. `progress(run, steps)` is called after each step.
    Raises SubjectError where the model cannot be made or patched.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    name = settings.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    if name not in DTYPES:
        raise SubjectError(f"dtype is {name!r}, but must be one of {', '.join(DTYPES)}")
    if not (settings.learning_rate > 0 and math.isfinite(settings.learning_rate)):
        raise SubjectError(f"learning_rate is {settings.learning_rate}, but must be positive and finite")
    if not 0 <= settings.seed < LARGEST_SEED:
        raise SubjectError(f"seed is {settings.seed}, but must be between 0 and {LARGEST_SEED - 1}")
    dtype = DTYPES[name]
    config = subject.configuration()
    _require_length(config, settings.seq_len)
    batches = _batches(config, settings)
    done: dict[str, Any] = {}

    def run(which: str, change: Callable[[nn.Module], Any]) -> TrainingRun:
        model = subject.model(config, settings.seed, dtype, device)
        done["start"] = {key: on_cpu(one) for key, one in model.named_parameters()}
        change(model)
        done["report"] = report(model) or done.get("report")
        done["parameters"] = sum(one.numel() for one in model.parameters())
        with use("interpret") if settings.interpret else nullcontext():
            try:
                made = trained(which, model, batches, settings.learning_rate, progress)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # sizes that do not fit together show in the first step
                if which != UNPATCHED or not subject.changes:
                    raise
                raise SubjectError(f"{subject.name} cannot train with these --set: {str(error).strip()}") from error
        del model
        gc.collect()  # a model has reference cycles, and its memory must not count as the next one's
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return made

    plain = run(UNPATCHED, lambda model: None)
    _require_finite(plain)
    other = run(OTHER, lambda model: round_differently(model, settings.seed + 1))
    patched = run(PATCHED, _patched)
    found = differences(plain, patched, other, done["start"], dtype)
    return {
        "schema": SCHEMA,
        "model": subject.name,
        "family": config.model_type,
        "parameters": done["parameters"],
        "configuration": {name: value for name, value in config.to_dict().items() if value is not None},
        "settings": {**asdict(settings), "dtype": name, "data": str(settings.data) if settings.data else None},
        "patch": asdict(done["report"]),
        "runs": [_as_json(one) for one in (plain, patched, other)],
        "differences": [one.as_json() for one in found],
        "is_rounding": all(one.passed for one in found),
    }


def _patched(model: nn.Module) -> None:
    try:
        patch(model)
    except ValueError as error:
        raise SubjectError(str(error)) from error
    if not report(model).swapped:
        raise SubjectError(f"patch changed nothing in a {type(model).__name__}")


def _require_finite(plain: TrainingRun) -> None:
    """Raise SubjectError where the unpatched model itself leaves the finite numbers."""
    together = zip(plain.losses, plain.gradient_norms, strict=True)
    step = next((place for place, pair in enumerate(together, 1) if not all(map(math.isfinite, pair))), None)
    if step is not None:
        raise SubjectError(
            f"the unpatched model has a loss or gradients that are not finite at step {step}, "
            "so nothing can be compared; try --dtype float32, a smaller --learning-rate, or another --set"
        )


def _require_length(config: Any, length: int) -> None:
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise SubjectError(f"seq_len is {length}, but the model has {most} positions")


def _batches(config: Any, settings: Settings) -> list[dict[str, Tensor]]:
    """Return the batch of each step.

    Each token is also a label, and the model shifts the labels. A model of masked tokens predicts every seventh token,
    which its input does not have.
    """
    source: TokenSource
    if settings.data is None:
        source = MarkovChain(min(config.vocab_size, MOST_TOKENS), settings.seed)
    else:
        source = TextBytes(settings.data, settings.seed)
    if source.vocab_size > config.vocab_size:
        raise SubjectError(f"the data have {source.vocab_size} tokens, but the model has {config.vocab_size}")
    tokens = source.sequences(range(settings.steps), settings.batch_size, settings.seq_len)
    batches = torch.from_numpy(np.ascontiguousarray(tokens))
    # The padding token's embedding is zero. A sequence that begins with this token stays zero in every layer, and each
    # norm multiplies its gradient by 1/√eps: in a Gemma 2 of 8 layers and 1,024 features the gradient overflows.
    padding = getattr(config, "pad_token_id", None)
    other = 1 if padding == 0 else 0
    batches = batches.masked_fill(batches == padding, other) if isinstance(padding, int) else batches
    if not is_masked(config):
        return [{"input_ids": one, "labels": one} for one in batches]
    masked = torch.arange(settings.seq_len) % 7 == 3
    return [{"input_ids": one.masked_fill(masked, other), "labels": one.masked_fill(~masked, -100)} for one in batches]


def _as_json(run: TrainingRun) -> dict[str, Any]:
    kept = ("name", "losses", "gradient_norms", "step_ms", "peak_bytes")
    return {name: getattr(run, name) for name in kept}
