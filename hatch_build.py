"""Tell the package index where the repository is. Only the place that builds a release knows its address.

The release workflow sets TILESMITH_REPOSITORY. The wheel then has the project's links, and the links and pictures
of its README lead into the repository at the release's tag. Elsewhere the variable is not set, and
README stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"(?!https?:|#|mailto:)([^\s\"')]+)"
PICTURE = re.compile(rf'(!\[[^\]]*\]\(|(?:src|srcset)="){RELATIVE}')
LINK = re.compile(rf"(\]\(){RELATIVE}")


class Repository(MetadataHookInterface):
    """Sets the fields `readme` and `urls`, which pyproject.toml lists as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = os.environ.get("TILESMITH_REPOSITORY", "").rstrip("/")
        tag = f"v{metadata['version']}"
        metadata["urls"] = links(address, tag) if address else {}
        text = absolute(text, address, tag) if address else text
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def links(address: str, tag: str) -> dict[str, str]:
    """Return what `[project.urls]` would hold."""
    return {
        "Repository": address,
        "Documentation": f"{address}/blob/{tag}/docs/start.md",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def absolute(text: str, address: str, tag: str) -> str:
    """Return README with absolute addresses: pictures as files, other links as pages of the repository."""
    text = PICTURE.sub(rf"\1{address}/raw/{tag}/\2", text)
    return LINK.sub(rf"\1{address}/blob/{tag}/\2", text)
