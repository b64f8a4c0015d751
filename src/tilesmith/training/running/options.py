"""Task and settings of a run, from the user's options and from the checkpoint that the run resumes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

from tilesmith.training.data.tasks import LlamaTask, OpenFoldTask, Task
from tilesmith.training.data.tokens import DataError
from tilesmith.training.running.checkpoint import Checkpoint, CheckpointError, require_facts
from tilesmith.training.running.run import DTYPES, Settings, SettingsError

TASKS: dict[str, Callable[..., Task]] = {"llama": LlamaTask, "openfold": OpenFoldTask}
LARGEST_SEED = 2**64 - 1
"""PyTorch's generators take no larger seed."""
SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def task_of(name: str, wanted: Mapping[str, Any]) -> Task:
    """Return the task with these sizes, data and seed; SettingsError or DataError where they are unusable."""
    sizes = {option: value for option, value in wanted.items() if option not in ("data", "seed")}
    source: dict[str, Any] = {"seed": wanted.get("seed") or 0}
    if not 0 <= source["seed"] <= LARGEST_SEED:
        raise SettingsError(f"seed is {source['seed']}, but must be between 0 and {LARGEST_SEED}")
    if wanted.get("data"):
        source["data"] = Path(wanted["data"])
    try:
        return TASKS[name](sizes, **source)
    except (ValueError, OverflowError) as error:
        raise SettingsError(str(error)) from None


def settings_of(wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """Return settings with these values, and defaults for the rest."""
    dtype = SHORT_DTYPES.get(wanted.get("dtype", ""), wanted.get("dtype", Settings.dtype))
    settings = Settings(**{**wanted, "dtype": dtype})
    if dtype not in DTYPES:
        raise SettingsError(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}")
    if settings.variant not in versions:
        raise SettingsError(f"variant is {settings.variant!r}, but must be one of {', '.join(versions)}")
    if not 0 < settings.learning_rate < math.inf:
        raise SettingsError(f"learning_rate is {settings.learning_rate}, but must be positive and finite")
    for name in ("batch_size", "num_steps", "accumulate"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name} is {getattr(settings, name)}, but must be at least 1")
    return settings


def resumed_task(name: str, resumed: Checkpoint, wanted: Mapping[str, Any]) -> Task:
    """Return the task of a checkpoint; SettingsError or DataError where the options change sizes, data or seed.

    The file of the data may lie elsewhere, but must have the same content.
    """
    require_facts(resumed)
    model, config = resumed.facts["model"], dict(resumed.facts["config"])
    if model != name:
        raise SettingsError(f"the checkpoint is of {model}, not of {name}")
    _require_config(config, TASKS[name]({}).config)
    for option, value in wanted.items():
        if option == "data" and config["data"] is not None:
            config["data"] = str(value)
        if str(config.get(option)) != str(value):
            raise SettingsError(f"{option} is {value}, but the checkpoint has {config.get(option)}; omit it to resume")
    try:
        task = task_of(name, config)
    except SettingsError as error:
        raise CheckpointError(f"the checkpoint's sizes are unusable: {error}") from None
    except DataError as error:
        if "data" in wanted:
            raise
        raise DataError(f"{error}; the checkpoint was trained on this file, so name its new place") from None
    if task.data_sha256() != resumed.facts.get("data_sha256"):
        raise DataError(f"{config['data']} is not the file that the checkpoint was trained on: its content differs")
    return task


def resumed_settings(resumed: Checkpoint, wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """Return the settings of a checkpoint with these changes; SettingsError where no step is left.

    A single process trains unsharded, whatever the checkpoint's run did.
    """
    require_facts(resumed)
    held = resumed.facts["settings"]
    _require_config(held, asdict(Settings()))
    try:
        settings_of(held, versions)
    except SettingsError as error:
        raise CheckpointError(f"the checkpoint's settings are unusable: {error}") from None
    if "WORLD_SIZE" not in os.environ:
        held = {**held, "shard": False}
    settings = settings_of({**held, **wanted}, versions)
    done = len(resumed.facts["losses"])
    if settings.num_steps <= done:
        raise SettingsError(f"num_steps is {settings.num_steps}, but the checkpoint is already at step {done}")
    return settings


def _require_config(held: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a checkpoint's options have other names or types than the usual ones."""
    if odd := held.keys() ^ usual.keys():
        name = min(odd)
        raise CheckpointError(f"the checkpoint {'lacks' if name in usual else 'has the unknown option'} {name}")
    for name, value in held.items():
        default = usual[name]
        kinds = {NoneType: (str, NoneType), float: (float, int)}.get(type(default), (type(default),))
        if type(value) not in kinds:
            raise CheckpointError(f"the checkpoint's {name} is {value!r}, which is no {kinds[0].__name__}")
