"""Numbers with units."""

from __future__ import annotations

import pytest

from tilesmith.lab.report.number_format import in_bytes, in_figures, in_time, lines_in_words


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(None, "?"), (0.0, "0 µs"), (3.83e-6, "<0.001 µs"), (0.0123, "0.0123 µs"), (999.7, "1 ms"), (1.7e6, "1.7 s")],
)
def test_times_have_no_exponent(microseconds: float | None, text: str) -> None:
    assert in_time(microseconds) == text


def test_numbers_that_round_up_to_a_thousand_take_the_next_unit() -> None:
    assert (in_bytes(12), in_bytes(999.9), in_bytes(999_900), in_bytes(4.2e16)) == ("12 B", "1 kB", "1 MB", "42,000 TB")
    assert (in_figures(12.34), in_figures(999.9), in_figures(2.684e8)) == ("12.3", "1 k", "268 M")


def test_lines_are_named_in_the_right_number() -> None:
    assert (lines_in_words([8]), lines_in_words([8, 10])) == ("line 8", "lines 8, 10")
