"""Replies to guesses."""

from __future__ import annotations

import pytest

from tilesmith.workshop.checking.verdict import QuestionAnswers
from tilesmith.workshop.course.exercise import CommonMistake, Question
from tilesmith.workshop.quizzes.replies import answer_text, question_problems, reply_to

QUESTION = Question(
    "How many?",
    "right",
    "Because.",
    worked="2 * rows",
    within=0.01,
    wrong=(CommonMistake("half", "That is one half."),),
)
FOUND = QuestionAnswers(right=100.0, wrong=[50.0], worked=100.0)


@pytest.mark.parametrize(
    ("guess", "right", "said"),
    [
        (100, True, "Yes, 100. Because.\n    2 * rows = 100"),
        (100.9, True, "Yes, 100."),
        (50, False, "That is one half."),
        (98, False, "The answer is larger."),
        (102, False, "The answer is smaller."),
        (float("nan"), False, "No."),
    ],
)
def test_reply_to_a_guess(guess: float, right: bool, said: str) -> None:
    reply = reply_to(QUESTION, FOUND, guess)
    assert reply.right is right
    assert said in reply.text


def test_answer_text_has_explanation_and_calculation() -> None:
    assert answer_text(QUESTION, FOUND) == "100. Because.\n    2 * rows = 100"


def test_sound_question_has_no_problem() -> None:
    assert question_problems(QUESTION, FOUND) == []


def test_problems_of_unsound_questions() -> None:
    assert question_problems(QUESTION, QuestionAnswers(101.0, [50.0], 100.0)) == ["right is 101, but 2 * rows is 100"]
    assert question_problems(QUESTION, QuestionAnswers(100.0, [100.0], 100.0)) == [
        "half gives 100 as a wrong answer, but 100 is right"
    ]
    ranged = Question("How many?", "right", "Because.", between=(1, 10))
    assert question_problems(ranged, QuestionAnswers(5.0)) == []
    assert question_problems(ranged, QuestionAnswers(11.0)) == ["right is 11, which is not between (1, 10)"]
