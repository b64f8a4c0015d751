"""Guesses are numbers as people write them."""

from __future__ import annotations

import pytest

from tilesmith.workshop.quizzes.written_numbers import written_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1024", 1024), ("1,024", 1024), ("1,048,576", 1048576), ("1 024", 1024), ("1_024", 1024), ("1'024", 1024),
        ("1.5", 1.5), ("1,5", 1.5), (".5", 0.5), ("-3", -3), ("−3", -3), ("1e6", 1e6), ("2.5e-3", 2.5e-3),
        ("50%", 0.5), ("3/4", 0.75), ("2^10", 1024), ("2**10", 1024), ("3 * 4 * 256", 3072), ("4 · 256", 1024),
        ("≈ 12", 12), ("16k", 16000), ("2 KiB", 2048), ("128 bytes", 128), ("(1 + 2) × 3", 9), ("007", 7),
        ("0.0833", 0.0833),
    ],
)  # fmt: skip
def test_number_is_read(text: str, number: float) -> None:
    assert written_number(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text", ["abc", "", "1;5", "1/0", "inf", "nan", "9**9**9", "__import__('os')", "3 apples", "x1"]
)
def test_other_text_gets_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number; write one, such as 1024"):
        written_number(text)
