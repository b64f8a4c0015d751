"""The CUDA toolkit of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

BUILT = "built"  # a folder with device code, by digest


@dataclass(frozen=True)
class Toolkit:
    """Where nvcc and its folder are, and the GPU to compile for, such as (9, 0)."""

    nvcc: str
    home: str
    capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """What nvcc compiles for. From Hopper on, `a` admits the instructions of that architecture alone."""
        major, minor = self.capability
        return f"{major}{minor}{'a' if major >= 9 else ''}"


def nvcc() -> str | None:
    """Return the path of nvcc: that of CUDA_HOME, of the PATH, or of the usual folder."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for place in (f"{named}/bin/nvcc" if named else None, shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if place and os.access(place, os.X_OK):
            return str(Path(place).resolve())
    return None


def missing_tool(device: str) -> str | None:
    """Return why this machine cannot judge CUDA sources, as the end of a sentence; None where it can."""
    if device != "cuda" or not torch.cuda.is_available():
        return "which needs a GPU, and this machine has none or was told not to use it"
    if nvcc() is None:
        return "which needs nvcc, and this machine has none (set CUDA_HOME, or put nvcc on the PATH)"
    if shutil.which("g++") is None:
        return "which needs g++ for the host code, and this machine has none"
    return None


def toolkit(capability: tuple[int, int]) -> Toolkit:
    """Return the toolkit. `missing_tool` must have found none missing."""
    found = nvcc()
    assert found is not None
    return Toolkit(found, _home(found), capability)


def _home(compiler: str) -> str:
    """Return the folder with the toolkit's `include`. Where nvcc is a script, nvcc itself says it."""
    home = Path(compiler).parent.parent
    if (home / "include" / "cuda_runtime.h").is_file():
        return str(home)
    dry = subprocess.run(
        [compiler, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True, check=False
    )
    named = re.search(r"^#\$ TOP=(.+)$", dry.stderr, re.MULTILINE)
    return str(Path(named.group(1)).resolve()) if named else str(home)
