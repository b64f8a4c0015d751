"""What a check and a quiz come to, as plain data: known to both processes, and quick to import."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Table = list[list[str]]  # rows of cells, the headings first


@dataclass(frozen=True)
class Reached:
    """A goal and what it came to, as `check --json` shows it."""

    name: str
    value: float
    wanted: str
    met: bool


@dataclass(frozen=True)
class Verdict:
    """What a check came to, as `check --json` shows it. `stage` is the one that failed, or the last one passed; `speed`
    what was measured, where there is a GPU; `table` what an exercise has filled in for its learner."""

    id: str
    passed: bool
    stage: str
    message: str
    goals: list[Reached] = field(default_factory=list)
    speed: list[str] = field(default_factory=list)
    table: Table = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Verdict:
        return cls(**{**content, "goals": [Reached(**goal) for goal in content["goals"]]})


@dataclass(frozen=True)
class Answers:
    """The right answer to a question, the wrong ones that have a reply, and what the worked expression comes to."""

    right: float
    wrong: list[float] = field(default_factory=list)
    worked: float | None = None
