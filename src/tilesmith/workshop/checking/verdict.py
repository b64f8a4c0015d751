"""The results of a check and of a quiz as plain data. Both processes import this module, so it imports no torch."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

Table = list[list[str]]  # rows of cells, the header row first


@dataclass(frozen=True)
class GoalResult:
    """One goal and its measured value, as in `check --json`."""

    name: str
    value: float
    wanted: str
    met: bool


@dataclass(frozen=True)
class Verdict:
    """The result of a check, as in `check --json`.

    `stage` is the stage that failed, or the last stage passed. `speed` holds the lines measured on a GPU. `table` holds
    the sweep of the exercise.
    """

    id: str
    passed: bool
    stage: str
    message: str
    goals: list[GoalResult] = field(default_factory=list)
    speed: list[str] = field(default_factory=list)
    table: Table = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self, file_name: str) -> list[int]:
        """Return the lines of the learner's file that the message of a failure names, in order and once each."""
        if self.passed:
            return []
        named = re.findall(rf"\b{re.escape(file_name)}:(\d+)", self.message)
        return list(dict.fromkeys(map(int, named or re.findall(r"\blines? (\d+)", self.message))))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Verdict:
        return cls(**{**content, "goals": [GoalResult(**goal) for goal in content["goals"]]})


@dataclass(frozen=True)
class QuestionAnswers:
    """The right answer to a question, the wrong answers that have a reply, and the value of the worked expression."""

    right: float
    wrong: list[float] = field(default_factory=list)
    worked: float | None = None
