"""What the installed Triton can do on this machine. Triton is imported only when needed, since it may be missing."""

from __future__ import annotations

import importlib
import importlib.util


def require_triton() -> None:
    """Raise ModuleNotFoundError where Triton is not installed, without importing it."""
    if importlib.util.find_spec("triton") is None:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")


def require_launching() -> None:
    """Raise Triton's error where it cannot launch on this GPU. Triton builds a small C library to find out."""
    importlib.import_module("tilesmith.toolchain.cache_folder").require_writable_cache()
    importlib.import_module("triton.runtime").driver.active.get_current_target()


def compiles_for(target: str) -> bool:
    """Whether a target's backend and tools are installed. Only compiling a kernel, which takes seconds, proves more."""
    vendor, _, architecture = target.partition(":")
    try:
        backends = importlib.import_module("triton.backends").backends
        if vendor == "hip":
            return "amd" in backends
        tools = importlib.import_module("triton.knobs").nvidia
        assembler = tools.ptxas_blackwell if int(architecture) >= 100 else tools.ptxas
        return "nvidia" in backends and bool(assembler.path) and bool(tools.cuobjdump.path)
    except Exception:  # no Triton; or knobs raise RuntimeError for a missing tool, OSError for a broken one
        return False
