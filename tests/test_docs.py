"""Links of the pages lead somewhere, and code names in them exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import tilesmith as ts
from tilesmith.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HOSTS = ("https://", "http://", "mailto:")


def prose(path: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> Iterator[str]:
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", prose(path))):  # code is no link
        target = match[1] or match[2]
        if target.startswith(HOSTS):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists():
            yield f"{target}: no such file"
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert list(broken_links(path)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`: c\n[x](page.md#a-b-c) [y](gone.md) [z](#gone) ![p](gone.png) [w](https://example.org)\n")
    assert [one.split(":")[0] for one in broken_links(page)] == ["gone.md", "#gone", "gone.png"]


# Names in backticks that look like ours: `ts.ops.silu`, `tilesmith.lab.check`, `tilesmith check`, `src/tilesmith/…`.
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def unknown_names(path: Path) -> Iterator[str]:
    for code in CODE.findall(prose(path)):
        for check in (_unknown_attribute, _unknown_command, _unknown_path):
            if check(code):
                yield code
    for block in FENCE.findall(path.read_text(encoding="utf-8")):
        for name in re.findall(r"(?<![\w.])ts\.[a-zA-Z_.]*[a-zA-Z_]", block):
            if _unknown_attribute(name):
                yield name
        for line in block.splitlines():
            command = re.match(r"(?:\$ )?(?:\.venv/bin/)?(tilesmith .*)", line)
            if command and _unknown_command(command[1]):
                yield line


def _unknown_attribute(code: str) -> bool:
    match = re.match(r"(?:ts|tilesmith)((?:\.[a-zA-Z_]\w*)+)", code)
    if match is None or re.match(r"tilesmith\.(py|html)", code):
        return False
    try:
        resolve(match[1].strip("."))
    except (AttributeError, ImportError):
        return True
    return False


@cache
def resolve(dotted: str) -> Any:
    """Return what `tilesmith.<dotted>` names. A module counts, also where a function of its package hides it."""
    parts = dotted.split(".")
    found: Any = ts
    for number, part in enumerate(parts, start=1):
        try:
            found = getattr(found, part)
        except AttributeError:
            inner = ".".join(parts[: number - 1])
            found = getattr(importlib.import_module(f"tilesmith.{inner}" if inner else "tilesmith"), part, None)
            found = importlib.import_module(".".join(["tilesmith", *parts[:number]])) if found is None else found
    return found


@cache
def all_commands() -> dict[str, Any]:
    return getattr(get_command(app), "commands", {})


def _unknown_command(code: str) -> bool:
    words = code.split()
    if len(words) < 2 or words[0] != "tilesmith" or not re.fullmatch(r"[a-z]+", words[1]):
        return False
    commands = all_commands()
    if words[1] not in commands:
        return True
    command = commands[words[1]]
    inner = getattr(command, "commands", {})
    if inner and len(words) > 2 and re.fullmatch(r"[a-z]+", words[2]):
        command = inner.get(words[2])
    if command is None:
        return True
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    given = re.findall(r"(?<= )--[a-z][a-z-]*", code.split(" -- ")[0].split(" #")[0])
    return not set(given) <= known


def _unknown_path(code: str) -> bool:
    if not re.fullmatch(r"(src|tests|docs|benchmarks|examples)/[\w/.-]+", code):
        return False
    return not (ROOT / code).exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_names_exist(path: Path) -> None:
    assert list(unknown_names(path)) == []


def test_a_wrong_name_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`ts.ops.silu(x)` `ts.ops.sillu` `tilesmith chekc` `tilesmith check --dtypo x`\n"
        "`tests/gone.py` `tilesmith ops`\n"
        "```\ntilesmith bench silu --cases all   # --not-an-option in a comment\nts.lab.judge_not(x)\n```\n"
    )
    assert list(unknown_names(page)) == [
        "ts.ops.sillu", "tilesmith chekc", "tilesmith check --dtypo x", "tests/gone.py", "ts.lab.judge_not",
    ]  # fmt: skip
