"""Importing a file that is no part of a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_module(path: Path) -> ModuleType:
    """Import a file under a unique module name."""
    name = f"tilesmith_workshop_{path.stem}_{abs(hash(path)):x}"
    source = importlib.util.spec_from_file_location(name, path)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module  # Triton finds a kernel's source through its module
    source.loader.exec_module(module)
    return module
