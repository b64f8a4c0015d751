"""Import modules of a package without its `__init__`, which may need a GPU build or other packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def bare(*packages: str, **names: Any) -> None:
    """Make empty packages whose modules can be imported. `names` are attributes of the last one."""
    for package in packages:
        folders = [Path(folder, *package.split(".")) for folder in sys.path]
        module = ModuleType(package)
        module.__path__ = [str(folder) for folder in folders if folder.is_dir()]
        sys.modules[package] = module
    for name, value in names.items():
        setattr(sys.modules[packages[-1]], name, value)
