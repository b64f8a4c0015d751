"""Tiny OpenFold: an alignment and its pairs of residues through Evoformer blocks, to a distance for every pair.

model.py      the model, written once
parts.py      what a version may choose
fused.py      an Evoformer block on what PyTorch has to make it fast: v2
versions.py   the choices of v1 to v4
"""

from __future__ import annotations

from tilesmith.models.openfold.model import Config, OpenFold
from tilesmith.models.openfold.parts import Parts
from tilesmith.models.versions import Version

VERSION_NAMES = ("v1", "v2", "v3", "v4")

__all__ = ["VERSION_NAMES", "Config", "OpenFold", "Parts", "version"]


def version(name: str) -> Version[Parts]:
    """The version by its name. Triton is imported here, so that other models can be trained without it."""
    if name not in VERSION_NAMES:
        raise ValueError(f"version is {name!r}, but must be one of {', '.join(VERSION_NAMES)}")
    from tilesmith.models.openfold.versions import VERSIONS

    return VERSIONS[name]
