"""JSON Schema files of what the commands write with `--json`.

A schema lists the keys that stay. Further keys may come with any release, so every schema allows them. A change that
removes a key or changes its meaning increases `schema` in the output.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

NAMES = (
    "check", "inspect", "bench", "profile", "judge", "doctor", "ops", "train", "compare", "prove", "debug", "tour",
    "learn-list", "learn-check", "learn-verify",
)  # fmt: skip


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of what `tilesmith COMMAND --json` writes. Raises ValueError for an unknown command."""
    if command not in NAMES:
        raise ValueError(f"schema: {command!r} is not one of {', '.join(NAMES)}")
    text = files(__name__).joinpath(f"{command}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
