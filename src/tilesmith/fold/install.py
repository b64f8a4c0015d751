"""`tilesmith.fold` under the name `cuequivariance_torch`, for models that import that package themselves."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "cuequivariance_torch"
OURS = {
    PACKAGE: "tilesmith.fold",
    f"{PACKAGE}.primitives": "tilesmith.fold.primitives",
    f"{PACKAGE}.primitives.triangle": "tilesmith.fold.primitives.triangle",
}
KERNELS = "cuequivariance_ops_torch"
THRESHOLD = "CUEQ_TRIATTN_FALLBACK_THRESHOLD"
_before: dict[str, ModuleType | None] = {}


def install() -> None:
    """Make `import cuequivariance_torch` import `tilesmith.fold`, in this process.

    Call it before the model is imported. The real package, installed or not, is hidden until `uninstall`. Models also
    read from `cuequivariance_ops_torch` below which length its kernels fall back to PyTorch: ours never do, so that
    length is 0.
    """
    if _before:
        return
    modules = {name: _alias(name, importlib.import_module(ours)) for name, ours in OURS.items()}
    kernels, attention = ModuleType(KERNELS), ModuleType(f"{KERNELS}.triangle_attention")
    setattr(attention, THRESHOLD, 0)
    for name, module in ((KERNELS, kernels), (attention.__name__, attention)):
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        modules[name] = module
    for name, module in modules.items():
        _before[name] = sys.modules.get(name)
        sys.modules[name] = module


def uninstall() -> None:
    """Undo `install`. Names that a model has already imported keep pointing to our functions."""
    for name, module in _before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module
    _before.clear()


def _alias(name: str, module: ModuleType) -> ModuleType:
    """Return a module of another name with the same contents; `importlib.util.find_spec` finds it."""
    alias = ModuleType(name, module.__doc__)
    vars(alias).update({key: value for key, value in vars(module).items() if not key.startswith("__")})
    alias.__spec__ = ModuleSpec(name, None)
    alias.__path__ = []
    return alias
