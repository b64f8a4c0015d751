"""Load a candidate's files, and find the function that the task calls."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

MODULE_NAME = "candidate"


class NoFunction(Exception):
    """The candidate has no function to call; the message says what was looked for."""


def load(folder: Path, main: str, loader: Any = None) -> Any:
    """Import the candidate's main file. Its neighbours can be imported by their names."""
    sys.path.insert(0, str(folder))
    source = importlib.util.spec_from_file_location(MODULE_NAME, folder / main, loader=loader)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[MODULE_NAME] = module  # Triton finds a kernel's source by its module
    source.loader.exec_module(module)
    return module


def function_of(module: Any, names: Sequence[str], init: Sequence[Any]) -> Callable[..., Any]:
    """Return the candidate's function: the first of these names, else its only public function.

    A class is made once, with `init`. A `SPEC` gives its `op`.
    """
    for name in names:
        found = getattr(module, name, None)
        if found is not None:
            return _made(found, init)
    if hasattr(getattr(module, "SPEC", None), "op"):
        return module.SPEC.op  # type: ignore[no-any-return]  # a Spec has types
    functions = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == MODULE_NAME and _is_function(value)
    ]
    if len(functions) == 1:
        return _made(functions[0], init)
    raise NoFunction(f"the candidate defines no function named {' or '.join(names)}")


def _is_function(value: Any) -> bool:
    return callable(value) and not hasattr(value, "arg_names") and not isinstance(value, type)


def _made(found: Any, init: Sequence[Any]) -> Callable[..., Any]:
    if not isinstance(found, type):
        return found  # type: ignore[no-any-return]  # the candidate's own
    made = found(*init)
    return made.eval() if isinstance(made, torch.nn.Module) and not init else made
