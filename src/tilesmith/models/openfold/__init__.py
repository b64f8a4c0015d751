"""Tiny OpenFold: Evoformer blocks over an alignment and its residue pairs, which predict the distance of each pair.

Files, in reading order:

- `model.py`: the model, written once.
- `parts.py`: the parts that a version chooses.
- `versions.py`: the choices of v1 to v4.
- `pytorch_fused.py`: the Evoformer block of v2, on PyTorch's fast paths.
"""

from __future__ import annotations

from tilesmith.models.openfold.model import Config, OpenFold
from tilesmith.models.openfold.parts import Parts
from tilesmith.models.versions import Version

VERSION_NAMES = ("v1", "v2", "v3", "v4")

__all__ = ["VERSION_NAMES", "Config", "OpenFold", "Parts", "version"]


def version(name: str) -> Version[Parts]:
    """Return the version of this name. Triton is imported only here, so other models can train without it."""
    if name not in VERSION_NAMES:
        raise ValueError(f"version is {name!r}, but must be one of {', '.join(VERSION_NAMES)}")
    from tilesmith.models.openfold.versions import VERSIONS

    return VERSIONS[name]
