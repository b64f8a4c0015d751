"""Checkpoints: one safetensors file with the parameters, the optimiser's state and the facts of a run.

Files are written atomically, with a checksum over everything in them. Unlike a pickle, reading one executes no code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from tilesmith import storage
from tilesmith.training.running.distributed import gathered, sharded_like

FORMAT = "tilesmith-training-2"
MOMENTS = ("exp_avg", "exp_avg_sq")


class CheckpointError(Exception):
    """The checkpoint is unusable; the message is one line for the user."""


@dataclass(frozen=True)
class Checkpoint:
    """`facts` are the model, its config, the settings and the losses; `tensors` are parameters and optimiser state."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


def taken(model: nn.Module, optimizer: Optimizer, facts: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint. With sharded parameters all processes must call this together."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        tensors[f"parameters.{name}"] = gathered(parameter.detach()).cpu().contiguous()
        for moment in MOMENTS:
            tensors[f"optimizer.{name}.{moment}"] = gathered(state[moment]).cpu().contiguous()
        tensors[f"optimizer.{name}.step"] = torch.as_tensor(float(state["step"]))
    return Checkpoint(facts, tensors)


def require_room(path: Path, model: nn.Module, *, files: int = 1) -> None:
    """Raise OSError where this number of checkpoints cannot be written side by side; called before a run.

    A second checkpoint needs room beside the first, which it replaces only when it is written completely.
    A file that is no checkpoint is never replaced.
    """
    if storage.is_stream(path):
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if b'"tilesmith"' not in file.read(4096):  # the metadata come first
                raise FileExistsError(errno.EEXIST, "the file exists and is no checkpoint; choose another name")
    with tempfile.TemporaryFile(dir=path.parent):
        free = shutil.disk_usage(path.parent).free
    size = (1 + len(MOMENTS)) * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    needed = size * (min(files, 1) if path.exists() else min(files, 2))
    if free < needed:
        several = "" if needed == size else "the last checkpoint and the next one need"
        raise OSError(
            errno.ENOSPC, f"{several or 'a checkpoint needs'} {needed >> 20} MiB, but only {free >> 20} MiB are free"
        )


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; on OSError an older file of that name stays."""
    facts = json.dumps({"format": FORMAT, **checkpoint.facts})
    metadata = {"tilesmith": facts, "sha256": _checksum(facts, checkpoint.tensors)}
    storage.write_atomically(path, safetensors.torch.save(checkpoint.tensors, metadata))


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in a file; CheckpointError where it is unusable."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not a checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError, ValueError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {_first_line(error)}") from error
    try:
        facts = json.loads(metadata["tilesmith"])
        version = facts.pop("format", None)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is not a checkpoint of `tilesmith train`") from None
    if version != FORMAT:
        raise CheckpointError(f"{path} is from another version of Tilesmith; this version reads {FORMAT}")
    if metadata.get("sha256") != _checksum(metadata["tilesmith"], tensors):
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    return Checkpoint(facts, tensors)


def _checksum(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the facts and over name, dtype, shape and content of every tensor."""
    found = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        one = tensors[name].contiguous()
        found.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        found.update(one.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def require_facts(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where the facts are not those that a run writes."""
    facts = checkpoint.facts
    kinds = {"model": str, "config": dict, "settings": dict, "losses": list}
    for name, kind in kinds.items():
        if not isinstance(facts.get(name), kind):
            raise CheckpointError(f"the checkpoint has no usable {name!r}: it is {_shortened(facts.get(name))}")
    for loss in facts["losses"]:
        if isinstance(loss, bool) or not isinstance(loss, int | float) or not math.isfinite(loss):
            raise CheckpointError(f"the checkpoint has a loss that is no finite number: {_shortened(loss)}")


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Load parameters and optimiser state into a model; the checkpoint may be of another version of the model."""
    named = dict(model.named_parameters())
    _require_tensors(checkpoint, named)
    group = optimizer.param_groups[0]
    step_on_device = bool(group.get("fused") or group.get("capturable"))
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(sharded_like(parameter, checkpoint.tensors[f"parameters.{name}"]))
            optimizer.state[parameter] = _state(checkpoint, name, parameter, step_on_device)


def _require_tensors(checkpoint: Checkpoint, named: Mapping[str, Parameter]) -> None:
    """Raise CheckpointError where the checkpoint's tensors are not those of this model and its optimiser."""
    wanted: dict[str, tuple[int, ...]] = {}
    for name, parameter in named.items():
        wanted[f"parameters.{name}"] = tuple(parameter.shape)
        wanted |= {f"optimizer.{name}.{moment}": tuple(parameter.shape) for moment in MOMENTS}
        wanted[f"optimizer.{name}.step"] = ()
    held = {name: tuple(one.shape) for name, one in checkpoint.tensors.items()}
    if held != wanted:
        # Parameters sort after the optimiser's state, but a missing parameter says more.
        name = min({*wanted.items()} ^ {*held.items()}, key=lambda item: (item[0].startswith("optimizer."), item[0]))[0]
        raise CheckpointError(
            f"{name.removeprefix('parameters.')} is {held.get(name, 'missing')} in the checkpoint, "
            f"but {wanted.get(name, 'missing')} in the model"
        )
    for name, one in checkpoint.tensors.items():
        if not one.is_floating_point() or not bool(one.isfinite().all()):
            raise CheckpointError(f"{name} in the checkpoint holds values that are no finite numbers")


def _state(checkpoint: Checkpoint, name: str, parameter: Parameter, step_on_device: bool) -> dict[str, Tensor]:
    moments = {
        moment: sharded_like(parameter, checkpoint.tensors[f"optimizer.{name}.{moment}"]).to(parameter.dtype)
        for moment in MOMENTS
    }
    step = checkpoint.tensors[f"optimizer.{name}.step"]
    return {"step": step.to(parameter.device) if step_on_device else step, **moments}


def _shortened(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
