"""Checkpoints: one safetensors file with the parameters, the optimiser's state and the facts of a run.

Files are written atomically. Unlike a pickle, reading one executes no code.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
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

FORMAT = "tilesmith-training-1"
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


def require_room(path: Path, model: nn.Module) -> None:
    """Raise OSError where a checkpoint cannot be written; called before a run."""
    if storage.is_stream(path):
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with tempfile.TemporaryFile(dir=path.parent):
        free = shutil.disk_usage(path.parent).free
    needed = (1 + len(MOMENTS)) * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if free < needed:
        raise OSError(errno.ENOSPC, f"a checkpoint needs {needed >> 20} MiB, but only {free >> 20} MiB are free")


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; on OSError an older file of that name stays."""
    facts = json.dumps({"format": FORMAT, **checkpoint.facts})
    storage.write_atomically(path, safetensors.torch.save(checkpoint.tensors, {"tilesmith": facts}))


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in a file; CheckpointError where it is unusable."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["tilesmith"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: {_first_line(error)}") from error
    except (KeyError, ValueError):
        raise CheckpointError(f"{path} is not a checkpoint of `tilesmith train`") from None
    if facts.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} is from another version of Tilesmith; this version reads {FORMAT}")
    return Checkpoint(facts, tensors)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Load parameters and optimiser state into a model; the checkpoint may be of another version of the model."""
    named = dict(model.named_parameters())
    wanted = {f"parameters.{name}": tuple(parameter.shape) for name, parameter in named.items()}
    held = {name: tuple(one.shape) for name, one in checkpoint.tensors.items() if name.startswith("parameters.")}
    if held != wanted:
        name = next(iter(sorted({*wanted.items()} ^ {*held.items()})))[0]
        raise CheckpointError(
            f"{name.removeprefix('parameters.')} is {held.get(name, 'missing')} in the checkpoint, "
            f"but {wanted.get(name, 'missing')} in the model"
        )
    group = optimizer.param_groups[0]
    step_on_device = bool(group.get("fused") or group.get("capturable"))
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(sharded_like(parameter, checkpoint.tensors[f"parameters.{name}"]))
            optimizer.state[parameter] = _state(checkpoint, name, parameter, step_on_device)


def _state(checkpoint: Checkpoint, name: str, parameter: Parameter, step_on_device: bool) -> dict[str, Tensor]:
    moments = {
        moment: sharded_like(parameter, checkpoint.tensors[f"optimizer.{name}.{moment}"]).to(parameter.dtype)
        for moment in MOMENTS
    }
    step = checkpoint.tensors[f"optimizer.{name}.step"]
    return {"step": step.to(parameter.device) if step_on_device else step, **moments}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
