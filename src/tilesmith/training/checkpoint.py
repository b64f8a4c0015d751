"""Checkpoints: one safetensors file with the parameters, the optimiser's state and all that a run needs to go on.

Written whole or not at all. Reading one runs none of its content, unlike a pickle's.
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
from tilesmith.training.distributed import like, whole

FORMAT = "tilesmith-training-1"
MOMENTS = ("exp_avg", "exp_avg_sq")


class CheckpointError(Exception):
    """Why a checkpoint cannot be used, in one line for the user."""


@dataclass(frozen=True)
class Checkpoint:
    """`facts` say what was trained and how far, as plain data; tensors are those of `parameters` and `optimizer`."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


def taken(model: nn.Module, optimizer: Optimizer, facts: dict[str, Any]) -> Checkpoint:
    """A checkpoint of these. All processes must take it together where parameters are sharded."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        tensors[f"parameters.{name}"] = whole(parameter.detach()).cpu().contiguous()
        for moment in MOMENTS:
            tensors[f"optimizer.{name}.{moment}"] = whole(state[moment]).cpu().contiguous()
        tensors[f"optimizer.{name}.step"] = torch.as_tensor(float(state["step"]))
    return Checkpoint(facts, tensors)


def require_room(path: Path, model: nn.Module) -> None:
    """Raise OSError where a checkpoint could not be written now: better before a run than after it."""
    if path.is_relative_to("/dev"):
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with tempfile.TemporaryFile(dir=path.parent):
        free = shutil.disk_usage(path.parent).free
    needed = (1 + len(MOMENTS)) * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if free < needed:
        raise OSError(errno.ENOSPC, f"a checkpoint takes {needed >> 20} MiB, and {free >> 20} MiB are free")


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Raises OSError where the disk refuses; an older file of that name is then still there."""
    facts = json.dumps({"format": FORMAT, **checkpoint.facts})
    storage.write_atomically(path, safetensors.torch.save(checkpoint.tensors, {"tilesmith": facts}))


def read(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["tilesmith"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint: {_first_line(error)}") from error
    except (KeyError, ValueError):
        raise CheckpointError(f"{path} is no checkpoint of `tilesmith train`") from None
    if facts.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} is of another version of Tilesmith; this one reads {FORMAT}")
    return Checkpoint(facts, tensors)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Put the parameters and the optimiser where the checkpoint was taken. Any version of the model will do."""
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
            parameter.copy_(like(parameter, checkpoint.tensors[f"parameters.{name}"]))
            optimizer.state[parameter] = _state(checkpoint, name, parameter, step_on_device)


def _state(checkpoint: Checkpoint, name: str, parameter: Parameter, step_on_device: bool) -> dict[str, Tensor]:
    moments = {
        moment: like(parameter, checkpoint.tensors[f"optimizer.{name}.{moment}"]).to(parameter.dtype)
        for moment in MOMENTS
    }
    step = checkpoint.tensors[f"optimizer.{name}.step"]
    return {"step": step.to(parameter.device) if step_on_device else step, **moments}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
