import re
import shutil
import subprocess
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from rich.console import Console

from tilesmith.lab.report.content import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Listing,
    Paragraph,
    Points,
    Section,
    Table,
)
from tilesmith.lab.report.page import render
from tilesmith.lab.report.terminal import show_block, show_heading

EVIL = '<script>alert("kernel")</script>'
VOID = {"meta", "br", "hr", "img", "link", "input"}
CHROMIUM = shutil.which("chromium")

TABLE = Table(
    "Times of <kernels>",
    [Column("kernel"), Column("time", "number"), Column("source", "code")],
    [
        [Cell(EVIL), Cell("12.5 µs", share=0.25), Cell("x = tl.load(x_ptr)")],
        [Cell("[bold]add[/]"), Cell("50 µs", "bad", share=7.0), Cell("")],
    ],
)
BLOCKS: list[Block] = [
    TABLE,
    Facts({"GPU": "none", EVIL: "yes"}),
    Points(["One & two.", EVIL]),
    Paragraph("Prose 'quoted'."),
    Listing("tilesmith check  # two  spaces\n[red]line[/] two", "bad"),
]


def page(template: str = "tour.html") -> str:
    return render(
        template,
        title=f"Kernels {EVIL}",
        summary="What was found.",
        sections=[Section("First", "Why it matters.", BLOCKS), Section("Second", "And this.", [])],
        provenance={"Made": "today", "By": EVIL},
        headlines=[Headline("42", "answers", "good")],
    )


class Structure(HTMLParser):
    """A strict parser: every opened element must close, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("template", ["base.html", "tour.html"])
def test_is_well_formed(template: str) -> None:
    html = page(template)
    assert html.lstrip().startswith("<!doctype html>")
    tags = [tag for tag, _ in Structure(html).seen]
    assert tags.count("h1") == 1
    assert tags.count("main") == 1
    assert tags.count("section") == 2


def test_escapes_names_that_look_like_markup() -> None:
    structure = Structure(page())
    assert "script" not in [tag for tag, _ in structure.seen]
    assert structure.text.count(EVIL) == 6


def test_page_makes_no_requests() -> None:
    html = page()
    assert not re.search(r"https?:|//\w|@import|url\(", html)
    for tag, attributes in Structure(html).seen:
        assert tag not in ("link", "img", "iframe", "object")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_every_link_leads_somewhere() -> None:
    seen = Structure(page()).seen
    targets = {attributes["id"] for _, attributes in seen if "id" in attributes}
    links = [(attributes["href"] or "").removeprefix("#") for tag, attributes in seen if tag == "a"]
    assert links == ["content", "section-1", "section-2"]
    assert set(links) <= targets


def test_page_shows_all_content() -> None:
    text = Structure(page()).text
    for said in (
        "What was found.",
        "Why it matters.",
        "12.5 µs",
        "One & two.",
        "Prose 'quoted'.",
        "42",
        "answers",
        "today",
    ):
        assert said in text
    assert "tilesmith check  # two  spaces\n[red]line[/] two" in text


def test_wide_parts_can_be_scrolled_by_keyboard() -> None:
    seen = Structure(page()).seen
    scrolled = [attributes for tag, attributes in seen if attributes.get("class") == "scroll" or tag == "pre"]
    assert len(scrolled) == 2
    assert all(attributes["tabindex"] == "0" for attributes in scrolled)


def test_bars_stay_inside_their_frame() -> None:
    widths = [attributes["style"] for tag, attributes in Structure(page()).seen if tag == "i"]
    assert widths == ["width: 25.0%", "width: 100%"]


def test_page_follows_light_or_dark_preference() -> None:
    html = page()
    assert '<meta name="color-scheme" content="light dark">' in html
    light, dark = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    colours = [set(re.findall(r"--[\w-]+(?=: (?:#|rgb))", palette)) for palette in (light, dark)]
    assert colours[0] == colours[1]


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_has_enough_contrast(scheme: int) -> None:
    palette = re.findall(r":root \{(.*?)\}", page(), re.DOTALL)[scheme]
    colour = {name: luminance(value) for name, value in re.findall(r"--([\w-]+): (#\w{6})", palette)}
    for name in ("ink", "quiet", "accent", "good", "bad"):
        lighter, darker = sorted((colour[name], colour["paper"]), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def luminance(colour: str) -> float:
    """Relative luminance as the Web Content Accessibility Guidelines define it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_missing_template_variable_raises() -> None:
    with pytest.raises(UndefinedError):
        render("tour.html", title="", summary="", sections=[object()], provenance={})  # type: ignore[list-item]  # on purpose


def test_terminal_prints_names_without_interpreting_markup() -> None:
    output = StringIO()
    console = Console(file=output, width=80)
    show_heading(console, "[bold]Title[/]", "Why [it] matters.")
    for block in BLOCKS:
        show_block(console, block)
    text = output.getvalue()
    for said in ("[bold]Title[/]", "Why [it] matters.", "Times of <kernels>", EVIL, "[bold]add[/]", "[red]line[/] two"):
        assert said in text
    assert "\x1b" not in text


def test_terminal_does_not_wrap_listings() -> None:
    output = StringIO()
    show_block(Console(file=output, width=40), Listing("cp " + "a" * 60 + " b"))
    assert "cp " + "a" * 60 + " b" in output.getvalue()


def test_terminal_truncates_code_before_other_columns() -> None:
    output = StringIO()
    rows = [[Cell("kernel.py:12 load"), Cell("16"), Cell("x = tl.load(x_ptr + " + "offsets + " * 12 + "0)")]]
    show_block(
        Console(file=output, width=80),
        Table("Widths", [Column("line"), Column("cuda:90", "number"), Column("source", "code")], rows),
    )
    assert re.search(r"^kernel\.py:12 load +16  x = tl\.load\(.*…", output.getvalue(), re.MULTILINE)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_browser_renders_the_page(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout
    assert "12.5 µs" in shown
    assert "<script" not in shown
    assert len(re.findall(r"<section\b", shown)) == 2
