"""Task and settings of a run, from the user's options and from the checkpoint that the run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilesmith.training.data.tasks import LlamaTask, OpenFoldTask, Task
from tilesmith.training.running.checkpoint import Checkpoint, CheckpointError
from tilesmith.training.running.run import DTYPES, Settings, SettingsError

TASKS: dict[str, Callable[..., Task]] = {"llama": LlamaTask, "openfold": OpenFoldTask}
SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def task_of(name: str, wanted: Mapping[str, Any]) -> Task:
    """Return the task with these sizes, data and seed; SettingsError or DataError where they are unusable."""
    sizes = {option: value for option, value in wanted.items() if option not in ("data", "seed")}
    source: dict[str, Any] = {"seed": wanted.get("seed") or 0}
    if wanted.get("data"):
        source["data"] = Path(wanted["data"])
    try:
        return TASKS[name](sizes, **source)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def settings_of(wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """Return settings with these values, and defaults for the rest."""
    dtype = SHORT_DTYPES.get(wanted.get("dtype", ""), wanted.get("dtype", Settings.dtype))
    settings = Settings(**{**wanted, "dtype": dtype})
    if dtype not in DTYPES:
        raise SettingsError(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}")
    if settings.variant not in versions:
        raise SettingsError(f"variant is {settings.variant!r}, but must be one of {', '.join(versions)}")
    if settings.learning_rate <= 0:
        raise SettingsError(f"learning_rate is {settings.learning_rate}, but must be positive")
    return settings


def resumed_task(name: str, resumed: Checkpoint, wanted: Mapping[str, Any]) -> Task:
    """Return the task of a checkpoint; SettingsError where the options change sizes, data or seed."""
    try:
        model, config = resumed.facts["model"], dict(resumed.facts["config"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError("the checkpoint does not say which model was trained") from None
    if model != name:
        raise SettingsError(f"the checkpoint is of {model}, not of {name}")
    for option, value in wanted.items():
        if str(config.get(option)) != str(value):
            raise SettingsError(f"{option} is {value}, but the checkpoint has {config.get(option)}; omit it to resume")
    return task_of(name, config)


def resumed_settings(resumed: Checkpoint, wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """Return the settings of a checkpoint with these changes; SettingsError where no step is left."""
    settings = settings_of({**resumed.facts["settings"], **wanted}, versions)
    done = len(resumed.facts["losses"])
    if settings.num_steps <= done:
        raise SettingsError(f"num_steps is {settings.num_steps}, but the checkpoint is already at step {done}")
    return settings
