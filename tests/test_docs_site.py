"""The pages of the site are complete, linked, and in the navigation. Building HTML is left to `make docs`."""

from __future__ import annotations

import ast
import importlib
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tilesmith.cli import app
from tilesmith.ops import SPECS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lab" / "inspect"))

from browser import CHROMIUM, Browser  # noqa: E402  # a module of the tests

SITEMAKER = ROOT / "docs" / "sitemaker"


@pytest.fixture(scope="module")
def sitemaker() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SITEMAKER))
        yield importlib.import_module("build")
        for name in ("build", "commands", "navigation", "operators", "pages", "python_reference"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def pages(sitemaker: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made: dict[str, str] = sitemaker.write_pages(tmp_path_factory.mktemp("site"))
    return made


def in_navigation(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from in_navigation(part)


@pytest.mark.parametrize("name", SPECS)
def test_operator_page_has_every_part(name: str, pages: dict[str, str]) -> None:
    text = pages[f"reference/operators/{name}.md"]
    assert f"ts.ops.{name}(" in text
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Measured", "Shapes", "Dtypes, layouts and gradient", "Errors", "Cost", "Source"]
    assert f"Error: {name}: " in text, "a real message of a wrong call"
    assert SPECS[name].cases[-1].name in text


def test_every_operator_has_a_page_on_its_speed(pages: dict[str, str]) -> None:
    speed = {path.removeprefix("performance/").removesuffix(".md") for path in pages if path.startswith("performance/")}
    assert speed == set(SPECS)
    assert all(f"](performance/{name}.md)" in pages["performance.md"] for name in SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_signature_of_an_operator_is_python_that_fits_the_page(name: str, pages: dict[str, str]) -> None:
    code = pages[f"reference/operators/{name}.md"].partition("```python\n")[2].partition("\n```")[0]
    ast.parse(f"def {code.removeprefix('ts.ops.')}: ...")
    assert max(map(len, code.splitlines())) <= 100
    assert "'" not in code.partition("=")[0]


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    for name, command in getattr(get_command(app), "commands", {}).items():
        text = pages[f"reference/commands/{name}.md"]
        for one in (command, *getattr(command, "commands", {}).values()):
            for option in one.params:
                shown = [spelling for spelling in option.opts if spelling.startswith("--") and spelling != "--help"]
                if not getattr(one, "commands", None) and not getattr(option, "hidden", False):
                    assert all(spelling in text for spelling in shown), (name, shown)


def test_every_page_is_in_the_navigation_once(sitemaker: Any, pages: dict[str, str]) -> None:
    listed = list(in_navigation(sitemaker.settings(pages)["nav"]))
    assert sorted(listed) == sorted(pages)


def test_a_new_page_of_docs_joins_the_guides(sitemaker: Any, pages: dict[str, str]) -> None:
    nav = sitemaker.settings({**pages, "judge.md": "# The judge\n"})["nav"]
    guides = next(section["Guides"] for section in nav if "Guides" in section)
    assert "judge.md" in guides[-1]["In depth"]


def test_links_of_all_pages_lead_to_pages(sitemaker: Any, pages: dict[str, str]) -> None:
    images = {f"images/{path.name}" for path in (ROOT / "docs" / "images").iterdir()}
    images |= set(sitemaker.survey_images(ROOT))
    broken = []
    for path, text in pages.items():
        plain = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", plain):
            found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if not target.startswith(("https://", "mailto:")) and found not in pages and found not in images:
                broken.append(f"{path}: {target}")
    assert broken == []


def test_picture_of_the_start_page_has_a_dark_version(pages: dict[str, str]) -> None:
    assert "(images/inspect.png#only-light)" in pages["index.md"]
    assert "(images/inspect-dark.png#only-dark)" in pages["index.md"]
    assert "<picture>" not in pages["index.md"]


def test_every_question_is_answered_with_a_link(pages: dict[str, str]) -> None:
    _, *questions = re.split(r"^## ", pages["questions.md"], flags=re.MULTILINE)
    assert len(questions) >= 10
    unanswered = [one.splitlines()[0] for one in questions if "](" not in one]
    assert unanswered == []


def test_site_asks_for_nothing_from_elsewhere(sitemaker: Any, pages: dict[str, str]) -> None:
    settings = sitemaker.settings(pages)
    assert settings["theme"]["font"] is False
    assert "offline" in settings["plugins"]
    assert all("//" not in script for script in settings["extra"]["polyfills"])
    for asset in (SITEMAKER / "assets").iterdir():
        assert not re.search(r"https?://", asset.read_text()), asset.name


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_search_worker_answers_a_page_opened_as_a_file(tmp_path: Path) -> None:
    """Browsers refuse a Worker of a file:// page; the site's own script takes its place."""
    script = (SITEMAKER / "assets" / "iframe-worker.js").read_text()
    (tmp_path / "words.js").write_text("self.words = {unpatch: 'questions.html'};")
    (tmp_path / "worker.js").write_text(
        "const ready = importScripts('words.js');"
        "addEventListener('message', async ({data}) => { await ready; postMessage(words[data]); });"
    )
    (tmp_path / "page.html").write_text(
        f"<!doctype html><body><script>{script}</script><script>"
        "const worker = new Worker('worker.js');"
        "window.answer = new Promise((done) => worker.addEventListener('message', ({data}) => done(data)));"
        "worker.postMessage('unpatch');</script>"
    )
    with Browser(tmp_path) as browser:
        browser.open(tmp_path / "page.html")
        assert browser.ask("window.answer") == "questions.html"
        assert browser.complaints == []
