"""The glossary: entries are in alphabetical order and link to exercises that exist."""

from __future__ import annotations

import re
from pathlib import Path

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ENTRIES = dict(
    re.findall(r"^### (.+)\n\n((?:(?!^### ).*\n?)*)", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
)


def test_entries_are_in_alphabetical_order() -> None:
    terms = [term.replace("`", "").casefold() for term in ENTRIES]
    assert len(terms) > 50
    assert terms == sorted(terms)


def test_every_link_leads_to_the_page_of_the_exercise_it_names() -> None:
    links = [link for text in ENTRIES.values() for link in re.findall(r"\[([^\]]+)\]\(([^)]+\.md)\)", text)]
    assert links
    for name, target in links:
        assert (GLOSSARY.parent / target).resolve().is_file(), target
        assert Path(target).parent.name == name
