"""What the installed Triton can do on this machine. Works where Triton is missing: nothing is imported until asked."""

from __future__ import annotations

import importlib


def require_launching() -> None:
    """Raise whatever Triton raises where it cannot launch on the GPU there is. It builds a small C library for it."""
    importlib.import_module("triton.runtime").driver.active.get_current_target()


def compiles_for(target: str) -> bool:
    """Whether a target's backend and its tools are there. To be sure, a kernel would have to compile for seconds."""
    vendor, _, architecture = target.partition(":")
    try:
        backends = importlib.import_module("triton.backends").backends
        if vendor == "hip":
            return "amd" in backends
        tools = importlib.import_module("triton.knobs").nvidia
        assembler = tools.ptxas_blackwell if int(architecture) >= 100 else tools.ptxas
        return "nvidia" in backends and bool(assembler.path) and bool(tools.cuobjdump.path)
    except Exception:  # no Triton at all; knobs raise RuntimeError for a missing tool, OSError for one of no use
        return False
