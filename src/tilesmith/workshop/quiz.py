"""Questions with a number for an answer: what is said to a guess, and to the author of a question that is not sound."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.workshop.exercise import Question
from tilesmith.workshop.verdict import Answers

_ALMOST = 1e-6


@dataclass(frozen=True)
class Reply:
    """What is said to a guess."""

    right: bool
    text: str


def reply_to(question: Question, found: Answers, guess: float) -> Reply:
    """Compares a guess with the answer; a common mistake gets its own reply."""
    if _close(guess, found.right, question.within):
        return Reply(True, f"Yes, {revealed(question, found)}")
    for misstep, wrong in zip(question.wrong, found.wrong, strict=True):
        if _close(guess, wrong, question.within):
            return Reply(False, misstep.reply)
    return Reply(False, "Not that. " + ("It is more." if guess < found.right else "It is less."))


def problems_of(question: Question, found: Answers) -> list[str]:
    """What is wrong with a question, for its author."""
    problems = []
    if question.worked is not None and _is_number(question.worked):
        problems.append(f"worked is {question.worked} itself; say how that comes about, or between what it lies")
    if found.worked is not None and not _close(found.worked, found.right, 0.0):
        problems.append(f"{question.answer} is {found.right:g}, but {question.worked} is {found.worked:g}")
    if question.between is not None and not question.between[0] <= found.right <= question.between[1]:
        problems.append(f"{question.answer} is {found.right:g}, which is not between {question.between}")
    for misstep, wrong in zip(question.wrong, found.wrong, strict=True):
        if _close(wrong, found.right, question.within):
            problems.append(f"{misstep.answer} gives {wrong:g} as a wrong answer, but that is right")
    return problems


def _is_number(expression: str) -> bool:
    try:
        float(expression)
    except ValueError:
        return False
    return True


def _close(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= max(within, _ALMOST) * max(abs(other), _ALMOST)


def revealed(question: Question, found: Answers) -> str:
    """The answer with its reason."""
    worked = f"\n    {question.worked} = {found.right:.6g}" if question.worked else ""
    return f"{found.right:.6g}. {question.reply}{worked}"
