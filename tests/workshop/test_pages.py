"""The pages: every command in them exists and knows the options it is given, and names exercises that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilesmith.cli import app
from tilesmith.cli.learn import learn
from tilesmith.workshop.catalogue import Catalogue

DOCS = Path(__file__).parents[2] / "docs"
EXERCISES = Catalogue()
PAGES = [DOCS / "workshop.md", *(exercise.page for exercise in EXERCISES.values())]
PLACEHOLDERS = {"ID", "ID…"}
TAKES_AN_EXERCISE = ("start", "check", "quiz", "hint", "watch", "solution", "reset")


def commands_in(page: Path) -> list[list[str]]:
    """The words of commands on lines of their own and in sentences, without `tilesmith` and what may be left out."""
    found = re.findall(r"^tilesmith ([^\n]+)$|`tilesmith ([^`\n]+)`", page.read_text(), flags=re.MULTILINE)
    return [re.sub(r"\[[^\]]*\]", "", one or other).split() for one, other in found]


def help_of(words: list[str]) -> str:
    group = learn if words[0] == "learn" else app
    inner = [
        word for word in words[words[0] == "learn" :][: 2 if words[0] == "debug" else 1] if not word.startswith("-")
    ]
    result = CliRunner().invoke(group, [*inner, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_command_exists_and_knows_its_options(page: Path) -> None:
    assert commands_in(page), "a page without a command leaves its reader alone"
    for words in commands_in(page):
        known = help_of(words)
        for option in (word for word in words if word.startswith("--")):
            assert option in known, f"{' '.join(words)}: no option {option}"
        if words[0] == "learn" and words[1] in TAKES_AN_EXERCISE and len(words) > 2:
            assert words[2] in {*EXERCISES, *PLACEHOLDERS} or words[2].startswith("--")


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError):
        help_of(["learn", "fly"])
    with pytest.raises(AssertionError):
        help_of(["fly"])
