"""The reply to a learner's guess, and the problems of a question for its author."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.workshop.checking.verdict import QuestionAnswers
from tilesmith.workshop.course.exercise import Question

_ALMOST = 1e-6


@dataclass(frozen=True)
class Reply:
    """The reply to one guess."""

    right: bool
    text: str


def reply_to(question: Question, found: QuestionAnswers, guess: float) -> Reply:
    """Compare a guess with the answer. A common mistake has its own reply."""
    if _close(guess, found.right, question.within):
        return Reply(True, f"Yes, {answer_text(question, found)}")
    for mistake, wrong in zip(question.wrong, found.wrong, strict=True):
        if _close(guess, wrong, question.within):
            return Reply(False, mistake.reply)
    return Reply(False, "No. " + ("The answer is larger." if guess < found.right else "The answer is smaller."))


def question_problems(question: Question, found: QuestionAnswers) -> list[str]:
    """Return the problems of a question, for its author."""
    problems = []
    if question.worked is not None and _is_number(question.worked):
        problems.append(f"worked is only the number {question.worked}; write the calculation, or give `between`")
    if found.worked is not None and not _close(found.worked, found.right, 0.0):
        problems.append(f"{question.answer} is {found.right:g}, but {question.worked} is {found.worked:g}")
    if question.between is not None and not question.between[0] <= found.right <= question.between[1]:
        problems.append(f"{question.answer} is {found.right:g}, which is not between {question.between}")
    for mistake, wrong in zip(question.wrong, found.wrong, strict=True):
        if _close(wrong, found.right, question.within):
            problems.append(f"{mistake.answer} gives {wrong:g} as a wrong answer, but {wrong:g} is right")
    return problems


def _is_number(expression: str) -> bool:
    try:
        float(expression)
    except ValueError:
        return False
    return True


def _close(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= max(within, _ALMOST) * max(abs(other), _ALMOST)


def answer_text(question: Question, found: QuestionAnswers) -> str:
    """Return the answer with its explanation."""
    worked = f"\n    {question.worked} = {found.right:.6g}" if question.worked else ""
    return f"{found.right:.6g}. {question.reply}{worked}"
