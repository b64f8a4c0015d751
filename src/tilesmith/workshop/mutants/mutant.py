"""A mutant: a model solution with one change, and the names by which data files and reports refer to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One change of a source: `kind` says what it is; `start` and `end` are offsets in the source's bytes."""

    kind: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """A source with one change. `name` does not contain the line, so it survives changes elsewhere in the file."""

    name: str
    kind: str
    line: int
    before: str
    after: str
    source: str


def mutants_of(source: str, edits: Iterable[Edit]) -> Iterator[Mutant]:
    """Yield a mutant for every edit that changes the source. Equal sources are yielded once."""
    content = source.encode()
    seen, names = {source}, Counter[str]()
    for edit in sorted(edits, key=lambda one: (one.start, one.end, one.kind, one.text)):
        before = content[edit.start : edit.end].decode()
        mutated = (content[: edit.start] + edit.text.encode() + content[edit.end :]).decode()
        if mutated in seen:
            continue
        seen.add(mutated)
        was, now = (" ".join(text.split()) for text in (before, edit.text))
        name = f"{edit.kind}: {was} -> {now}"
        names[name] += 1
        numbered = name if names[name] == 1 else f"{name} #{names[name]}"
        yield Mutant(numbered, edit.kind, content[: edit.start].count(b"\n") + 1, was, now, mutated)
