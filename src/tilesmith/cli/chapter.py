"""What a chapter of `tilesmith tour` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.lab.report.content import Block, Headline

Report = Callable[[str], None]
"""Takes a few words on what is being done, for whoever waits."""


@dataclass(frozen=True)
class Told:
    """What a chapter found: for reading, for `--json`, for the top of the page. Not `passed` ends the tour with 1."""

    blocks: Sequence[Block]
    findings: Mapping[str, Any] = field(default_factory=dict)
    headlines: Sequence[Headline] = ()
    passed: bool = True


@dataclass(frozen=True)
class Chapter:
    """A heading, the sentence under it, and the work."""

    title: str
    lead: str
    tell: Callable[[Report], Told]
