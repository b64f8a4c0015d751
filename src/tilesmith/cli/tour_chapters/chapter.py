"""What a chapter of `tilesmith tour` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.lab.report.content import Block, Headline, Picture

Report = Callable[[str], None]
"""Shows a short progress message."""


@dataclass(frozen=True)
class Told:
    """The results of a chapter: blocks, findings for `--json`, headlines. If not `passed`, the tour exits with 1.

    The page opens with the first `picture`.
    """

    blocks: Sequence[Block]
    findings: Mapping[str, Any] = field(default_factory=dict)
    headlines: Sequence[Headline] = ()
    passed: bool = True
    picture: Picture | None = None


@dataclass(frozen=True)
class Chapter:
    """A title, a lead sentence, and the function that runs the chapter."""

    title: str
    lead: str
    tell: Callable[[Report], Told]
