"""Replies to guesses."""

from __future__ import annotations

import pytest

from tilesmith.workshop.exercise import Misstep, Question
from tilesmith.workshop.quiz import problems_of, reply_to, revealed
from tilesmith.workshop.verdict import Answers

QUESTION = Question(
    "How many?", "right", "Because.", worked="2 * rows", within=0.01, wrong=(Misstep("half", "That is one half."),)
)
FOUND = Answers(right=100.0, wrong=[50.0], worked=100.0)


@pytest.mark.parametrize(
    ("guess", "right", "said"),
    [
        (100, True, "Yes, 100. Because.\n    2 * rows = 100"),
        (100.9, True, "Yes, 100."),
        (50, False, "That is one half."),
        (98, False, "It is more."),
        (102, False, "It is less."),
        (float("nan"), False, "Not that."),
    ],
)
def test_a_guess_gets_the_reply_it_deserves(guess: float, right: bool, said: str) -> None:
    reply = reply_to(QUESTION, FOUND, guess)
    assert reply.right is right
    assert said in reply.text


def test_the_answer_is_told_with_its_reason() -> None:
    assert revealed(QUESTION, FOUND) == "100. Because.\n    2 * rows = 100"


def test_a_sound_question_has_no_problem() -> None:
    assert problems_of(QUESTION, FOUND) == []


def test_an_unsound_question_is_explained() -> None:
    assert problems_of(QUESTION, Answers(101.0, [50.0], 100.0)) == ["right is 101, but 2 * rows is 100"]
    assert problems_of(QUESTION, Answers(100.0, [100.0], 100.0)) == [
        "half gives 100 as a wrong answer, but that is right"
    ]
    ranged = Question("How many?", "right", "Because.", between=(1, 10))
    assert problems_of(ranged, Answers(5.0)) == []
    assert problems_of(ranged, Answers(11.0)) == ["right is 11, which is not between (1, 10)"]
