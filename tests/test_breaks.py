"""The planted breaks fit the sources: `make test-breaks` then sees whether the tests find them."""

from __future__ import annotations

import shlex

import pytest

from breaks import BREAKS, ROOT, Break

FEWEST = 40


@pytest.mark.parametrize("planted", BREAKS, ids=lambda planted: planted.name)
def test_break_fits_its_file_and_names_a_test_file(planted: Break) -> None:
    assert planted.text in (ROOT / "src" / "tilesmith" / planted.file).read_text()
    assert planted.text != planted.fault
    assert (ROOT / shlex.split(planted.tests)[0]).is_file()


def test_names_of_breaks_are_unique() -> None:
    names = [planted.name for planted in BREAKS]
    assert len(set(names)) == len(names)


def test_there_are_at_least_forty_breaks() -> None:
    assert len(BREAKS) >= FEWEST
