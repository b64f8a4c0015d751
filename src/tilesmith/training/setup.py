"""What a run is to be, from what the user asked for and the checkpoint it goes on from, if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilesmith.training.checkpoint import Checkpoint, CheckpointError
from tilesmith.training.run import DTYPES, Settings, SettingsError
from tilesmith.training.tasks import LlamaTask, OpenFoldTask, Task

TASKS: dict[str, Callable[..., Task]] = {"llama": LlamaTask, "openfold": OpenFoldTask}
SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def task_of(name: str, wanted: Mapping[str, Any]) -> Task:
    """Of these sizes, data and seed. Raises SettingsError or DataError, in one line."""
    sizes = {option: value for option, value in wanted.items() if option not in ("data", "seed")}
    source: dict[str, Any] = {"seed": wanted.get("seed") or 0}
    if wanted.get("data"):
        source["data"] = Path(wanted["data"])
    try:
        return TASKS[name](sizes, **source)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def settings_of(wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """Settings with these values and defaults for the rest."""
    dtype = SHORT_DTYPES.get(wanted.get("dtype", ""), wanted.get("dtype", Settings.dtype))
    settings = Settings(**{**wanted, "dtype": dtype})
    if dtype not in DTYPES:
        raise SettingsError(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}")
    if settings.variant not in versions:
        raise SettingsError(f"variant is {settings.variant!r}, but must be one of {', '.join(versions)}")
    if settings.learning_rate <= 0:
        raise SettingsError(f"learning_rate is {settings.learning_rate}, but must be more than 0")
    return settings


def resumed_task(name: str, resumed: Checkpoint, wanted: Mapping[str, Any]) -> Task:
    """The task of a checkpoint. Raises SettingsError where sizes, data or seed would change on the way."""
    try:
        model, config = resumed.facts["model"], dict(resumed.facts["config"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError("it does not say what was trained") from None
    if model != name:
        raise SettingsError(f"the checkpoint is of {model}, not of {name}")
    for option, value in wanted.items():
        if str(config.get(option)) != str(value):
            raise SettingsError(
                f"{option} is {value}, but the checkpoint has {config.get(option)}; leave it out to go on from there"
            )
    return task_of(name, config)


def resumed_settings(resumed: Checkpoint, wanted: Mapping[str, Any], versions: tuple[str, ...]) -> Settings:
    """The settings of a checkpoint, but for those that are given anew. There must be steps left to take."""
    settings = settings_of({**resumed.facts["settings"], **wanted}, versions)
    done = len(resumed.facts["losses"])
    if settings.num_steps <= done:
        raise SettingsError(f"num_steps is {settings.num_steps}, but the checkpoint has taken {done} steps already")
    return settings
