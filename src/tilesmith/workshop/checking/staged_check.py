"""The part that all kinds of check share: stages in order, the goals, and the verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tilesmith.workshop.checking import failure_messages
from tilesmith.workshop.checking.goals import Measured
from tilesmith.workshop.checking.verdict import GoalResult, Table, Verdict
from tilesmith.workshop.course.exercise import Exercise, Goal


class StageFailure(Exception):
    """A stage that the learner's file did not pass. The message is for the learner."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(stage, message)  # all arguments: another process may build it again from them
        self.stage, self.message = stage, message

    def __str__(self) -> str:
        return self.message


class StagedCheck(ABC):
    """A check of one file. The check calls `entering` with every stage that begins."""

    def __init__(self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None) -> None:
        self.exercise = exercise
        self.file = file
        self._entering = entering
        self._goals: list[GoalResult] = []
        self._table: Table = []

    def verdict(self) -> Verdict:
        """Run the stages until one fails, and return the result."""
        try:
            last, speed = self._pass_stages()
        except StageFailure as failure:
            return Verdict(self.exercise.id, False, failure.stage, str(failure), self._goals, table=self._table)
        return Verdict(self.exercise.id, True, last, "", self._goals, speed, self._table)

    @abstractmethod
    def _pass_stages(self) -> tuple[str, list[str]]:
        """Run every stage. Return the last stage and the lines about speed. Raises StageFailure."""

    def _require_goals(self, measure: Callable[[Goal], Measured], sizes: Callable[[Goal], str]) -> None:
        """Measure every goal. Raises StageFailure for the first goal that is missed."""
        missed = None
        for goal in self.exercise.goals:
            found = measure(goal)
            met = goal.met_by(found.value)
            self._goals.append(GoalResult(goal.name, found.value, goal.wanted, met))
            if not met and missed is None:
                missed = failure_messages.missed_goal(goal, found, sizes(goal))
        if missed is not None:
            raise StageFailure("goals", missed)
