"""The page of `tilesmith inspect`: its content, and its behaviour in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import CHROMIUM, Browser
from inspected import column_walk, twice_read

from tilesmith.lab.inspect import Inspection, inspect
from tilesmith.lab.inspect.inspect_call import NotebookInspection
from tilesmith.lab.inspect.model import Kernel, ProgramFacts, SharedAccess, Tile
from tilesmith.lab.inspect.output.page import notebook_html, write_html
from tilesmith.lab.inspect.output.page_data import rating_of
from tilesmith.lab.inspect.output.roofline_chart import roofline

EVIL = '</script><img src="x" onerror="window.injected = 1">'
MANY = 4096

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def launch_both() -> None:
    column_walk[(16,)](torch.randn(64, 64, device="cuda"), torch.empty(4096, device="cuda"), 64, 64, BLOCK=256)
    x = torch.randn(1024, device="cuda")
    twice_read[(4,)](x, torch.empty_like(x), 1024, BLOCK=256)


@pytest.fixture(scope="module")
def found() -> Inspection:
    return inspect(launch_both, targets=["cuda:90"])


def with_many_programs(kernel: Kernel) -> Kernel:
    """Return the kernel with a grid of 4096 traced programs."""
    first = kernel.program_facts[0]
    others = tuple(
        ProgramFacts((number, 0, 0), (Tile("y_ptr", ((number * 256, number * 256 + 256),)),))
        for number in range(1, MANY)
    )
    arguments = tuple(replace(one, shape=(MANY * 256,)) if one.name == "y_ptr" else one for one in kernel.arguments)
    return replace(
        kernel, grid=(MANY, 1, 1), programs=MANY, programs_traced=MANY, arguments=arguments,
        program_facts=(first, *others),
    )  # fmt: skip


def with_evil_names(inspection: Inspection) -> Inspection:
    kernel = inspection.kernels[0]
    programs = tuple(
        replace(facts, operations=tuple(replace(one, argument=EVIL, name=EVIL) for one in facts.operations))
        for facts in kernel.program_facts
    )
    evil = replace(
        kernel,
        name=EVIL,
        source=kernel.source.replace("places = tl", f"places = tl  # {EVIL}\n", 1),
        file=EVIL,
        arguments=tuple(replace(one, name=EVIL) if one.name == "x_ptr" else one for one in kernel.arguments),
        accesses=tuple(replace(one, argument=EVIL) if one.argument == "x_ptr" else one for one in kernel.accesses),
        findings=tuple(replace(one, message=EVIL, code=EVIL, advice=EVIL) for one in kernel.findings),
        program_facts=programs,
        notes=(EVIL,),
    )
    return replace(inspection, script=EVIL, notes=(EVIL,), kernels=(evil,))


class Page(HTMLParser):
    """Parses a page into elements with attributes, visible text, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._within = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts.append(data)
        elif self._within != "style":
            self.text += data


def test_page_has_headlines_findings_and_nine_views(found: Inspection) -> None:
    page = Page(write_html(found))
    text = " ".join(page.text.split())
    for said in (
        "of the moved bytes are used", "predicted least time on NVIDIA H200", "occupancy on cuda:90",
        "predicted time of a launch, limited by",
        "warning: uncoalesced at inspected.py", "12.5% of the moved bytes are used", "What each program writes",
        "Where the program reads and writes", "Data flow", "Order of operations", "Registers and shared memory",
        "What the colours mean", "Efficiency", "Source, with the cost of each line", "Step by step",
    ):  # fmt: skip
        assert said in text
    ordinals = re.findall(
        r'class="ordinal" aria-hidden="true">(\d)<', write_html(replace(found, kernels=found.kernels[:1]))
    )
    assert sorted(ordinals) == list("123456789")


def test_predicted_and_measured_headlines_look_different(found: Inspection) -> None:
    kernel = replace(found.kernels[0], measured_us=12.0, measured_note="median of 9")
    page = write_html(replace(found, kernels=(kernel,)))
    for origin, meaning in (("predicted", "least time on NVIDIA H200"), ("measured", "median of 9")):
        assert f'<div class="{origin}"><dt><span class="origin">{origin}</span> {meaning}' in page


def test_source_lines_with_cost_have_a_coloured_bar(found: Inspection) -> None:
    html = write_html(replace(found, kernels=found.kernels[:1]))
    walk = found.kernel("column_walk")
    load, store = (next(one.line for one in walk.accesses if one.kind == kind) for kind in ("load", "store"))
    assert re.search(
        rf'id="kernel-1-line-{load}" class="costs">\s*<td[^>]*><i class="uncoalesced" style="width: 100', html
    )
    assert re.search(
        rf'id="kernel-1-line-{store}" class="costs">\s*<td[^>]*><i class="coalesced" style="width: 100', html
    )
    assert f"<code>{walk.source.splitlines()[0]}</code>" in html


def test_called_functions_are_listed_after_the_kernel(found: Inspection) -> None:
    walk = found.kernel("column_walk")
    near, far = (replace(walk.lines[0], line=number, code=code) for number, code in ((900, "near()"), (901, "far()")))
    kernel = replace(walk, lines=(*walk.lines, near, replace(far, file="/else/where.py")))
    html = write_html(replace(found, kernels=(kernel, walk)))
    assert re.search(r'id="kernel-1-line-900" class="costs"', html)
    text = Page(html).text
    assert text.index("called functions:") < text.index("near()") < text.index("where.py: far()")
    assert "kernel-1-line-901" not in html
    assert re.findall(r'<a href="#kernel-\d">([^<]*)</a>', html) == ["column_walk 1", "column_walk 2"]


def test_rating_is_the_worst_that_applies(found: Inspection) -> None:
    walk, twice = found.kernel("column_walk"), found.kernel("twice_read")
    assert [rating_of(walk, one) for one in walk.accesses] == ["uncoalesced", "coalesced"]
    assert [rating_of(twice, one) for one in twice.accesses if one.kind == "load"] == ["coalesced", "reused"]
    store = next(one for one in twice.accesses if one.kind == "store")
    assert rating_of(twice, store) == "coalesced"
    assert rating_of(twice, replace(store, efficiency=None)) == "unknown"
    clash = SharedAccess("store", store.file, store.line, instructions=4, wavefronts=64, ideal_wavefronts=16)
    targets = {"cuda:90": replace(twice.targets["cuda:90"], shared_accesses=(clash,))}
    assert rating_of(replace(twice, targets=targets), store) == "conflict"


def test_places_a_kernel_on_the_roofline_where_it_has_flops(found: Inspection) -> None:
    twice = found.kernel("twice_read")
    drawn = roofline(twice, 32)
    assert drawn is not None
    chart = drawn.charts[0]
    at_best = chart.series[0].marks[0]
    assert at_best.x == pytest.approx(twice.flops / twice.unique_bytes)
    assert at_best.open
    for series in chart.series:
        assert 0 < chart.x.share(series.marks[0].x) < 1
        assert 0 < chart.y.share(series.marks[0].y) < 1
    measured = roofline(replace(twice, measured_us=5.0), 32)
    assert measured is not None
    assert [mark.open for one in measured.charts[0].series for mark in one.marks][-1] is False
    assert roofline(found.kernel("column_walk"), 32) is None


def test_page_makes_no_requests(found: Inspection) -> None:
    html = write_html(found).replace("http://www.w3.org/2000/svg", "")  # the SVG namespace
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(|XMLHttp", html)
    assert not {"link", "img", "iframe"} & {tag for tag, _ in Page(html).elements}


def test_names_of_the_script_cannot_become_markup(found: Inspection) -> None:
    page = Page(write_html(with_evil_names(found)))
    assert "img" not in [tag for tag, _ in page.elements]
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 2
    data = json.loads(page.scripts[0])
    assert data["kernels"][0]["name"] == EVIL
    assert page.text.count(EVIL) >= 6


def test_notebook_shows_the_page_in_an_iframe(found: Inspection) -> None:
    (frame,) = Page(notebook_html(found)).elements
    assert frame[0] == "iframe"
    assert frame[1]["sandbox"] == "allow-scripts"
    assert frame[1]["srcdoc"] == write_html(found)
    assert isinstance(found, NotebookInspection)
    assert found._repr_html_() == notebook_html(found)


def test_failed_script_is_reported_on_the_page(found: Inspection) -> None:
    ending = replace(found.ending, kind="exception", message="ValueError: on purpose")
    assert "ValueError: on purpose" in Page(write_html(replace(found, ending=ending, kernels=()))).text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def opened(browser: Browser, inspection: Inspection, folder: Path) -> Browser:
    browser.complaints.clear()
    (folder / "page.html").write_text(write_html(inspection), encoding="utf-8")
    browser.open(folder / "page.html")
    return browser


def pixels(browser: Browser, selector: str) -> Any:
    return browser.ask(f"document.querySelector({json.dumps(selector)}).toDataURL()")


@in_a_browser
def test_click_slider_and_keys_select_a_program(browser: Browser, found: Inspection, tmp_path: Path) -> None:
    page = opened(browser, found, tmp_path)
    canvas = "#kernel-1 .output canvas"
    assert page.text("#kernel-1 .output output") == "(0, 0, 0)"
    before = pixels(page, canvas)
    page.click(canvas, 0.02, 0.9)
    picked = page.text("#kernel-1 .output output")
    assert picked != "(0, 0, 0)"
    assert pixels(page, canvas) != before
    number = int(picked.strip("()").split(",")[0])
    page.press("ArrowLeft")
    assert page.text("#kernel-1 .output output") == f"({number - 1}, 0, 0)"
    page.ask("document.querySelector('#kernel-1 input').focus()")
    page.press("ArrowRight")
    assert page.text("#kernel-1 .output output") == f"({number}, 0, 0)"
    assert f"y_ptr[{number * 256}:{number * 256 + 256}]" in page.text("#kernel-1 .output .said")
    assert page.complaints == []


@in_a_browser
def test_lane_shows_the_elements_it_requests(browser: Browser, found: Inspection, tmp_path: Path) -> None:
    page = opened(browser, found, tmp_path)
    said = "#kernel-1 .access .said[aria-live]"
    assert "12.5 % of the moved bytes are used" in page.text("#kernel-1 .access .whole")
    assert "32 sectors of 32 bytes, ideal is 4" in page.text("#kernel-1 .warp")
    rows = {
        lane: offsets[0] // 64
        for lane, offsets in found.kernel("column_walk").program_facts[0].accesses[0].requests[0].lanes
    }
    page.point("#kernel-1 .lane[data-lane='5']")
    assert page.text(said) == f"Lane 5 requests 1 element: x_ptr[{rows[5]}, 0]"
    page.ask("document.querySelector('#kernel-1 .lane.picked').focus()")
    page.press("ArrowRight")
    assert page.text(said) == f"Lane 6 requests 1 element: x_ptr[{rows[6]}, 0]"
    page.point("#kernel-1 .access canvas.drawing", 0.5 / 64, (rows[10] + 0.5) / 64)
    assert page.text(said) == f"Lane 10 requests 1 element: x_ptr[{rows[10]}, 0]"
    page.click("#kernel-1 .chips button:nth-child(2)")
    assert "Coalesced, 100.0 %" in page.text("#kernel-1 .access .whole")
    assert page.complaints == []


@in_a_browser
def test_one_kernel_is_shown_at_a_time(browser: Browser, found: Inspection, tmp_path: Path) -> None:
    page = opened(browser, found, tmp_path)
    shown = "[...document.querySelectorAll('section.kernel')].filter(one => !one.hidden).map(one => one.id).join()"
    assert page.ask(shown) == "kernel-1"
    page.click("nav.kernels li:nth-child(2) a")
    assert page.ask(shown) == "kernel-2"
    assert page.ask("document.querySelector('nav.kernels [aria-current]').textContent") == "twice_read"
    assert page.ask("document.querySelectorAll('#kernel-2 .flow .box').length") == 4  # two loads, arithmetic, a store
    assert page.ask("document.querySelectorAll('#kernel-2 .timeline .operation').length") == len(
        found.kernel("twice_read").program_facts[0].operations
    )
    page.click("#kernel-2 .flow .box")
    line = found.kernel("twice_read").program_facts[0].operations[0].line
    assert page.ask("document.querySelector('#kernel-2 .source tr.picked').id") == f"kernel-2-line-{line}"
    page.click("#kernel-2 .source tr.costs:last-of-type a")
    assert "store y_ptr" in page.ask("document.querySelector('#kernel-2 .chips [aria-pressed=true]').textContent")
    assert page.complaints == []


@in_a_browser
def test_large_grid_does_not_freeze_the_page(browser: Browser, found: Inspection, tmp_path: Path) -> None:
    many = replace(found, kernels=(with_many_programs(found.kernel("column_walk")),))
    page = opened(browser, many, tmp_path)
    slider = "document.querySelector('#kernel-1 input')"
    took = page.ask(
        f"(() => {{ const start = performance.now(); for (let number = 0; number < 10; number++) {{"
        f"{slider}.value = number * 400; {slider}.dispatchEvent(new Event('input')); }}"
        "return (performance.now() - start) / 10; })()"
    )
    assert took < 500  # milliseconds per step; an idle machine needs about 20
    assert page.text("#kernel-1 .output output") == "(3600, 0, 0)"
    assert "The views below show program (0, 0, 0)" in page.text("#kernel-1 .output .said")
    assert page.complaints == []


@in_a_browser
def test_markup_in_names_is_harmless_in_a_browser(browser: Browser, found: Inspection, tmp_path: Path) -> None:
    page = opened(browser, with_evil_names(found), tmp_path)
    assert page.ask("window.injected") is None
    assert page.ask("document.images.length") == 0
    assert EVIL in page.text("#kernel-1 .chips")
    assert EVIL in page.text("#kernel-1 .flow")
    assert page.complaints == []


@in_a_browser
def test_a_tensor_inside_a_tuple_and_a_kernel_that_failed_are_shown_too(
    browser: Browser, found: Inspection, tmp_path: Path
) -> None:
    kernel = found.kernel("column_walk")
    accesses = tuple(replace(one, argument=f"pair[{number}]") for number, one in enumerate(kernel.accesses))
    failed = replace(kernel, program_facts=(), accesses=(), lines=(), targets={})
    page = opened(browser, replace(found, kernels=(replace(kernel, accesses=accesses), failed)), tmp_path)
    page.point("#kernel-1 .lane[data-lane='0']")
    assert page.text("#kernel-1 .access .said[aria-live]") == "Lane 0 requests 1 element: pair[0][0]"
    page.click("nav.kernels li:nth-child(2) a")
    assert page.text("#kernel-2 .output .said") == "No program was traced to its end."
    assert page.complaints == []


@in_a_browser
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1400, True)])
def test_page_fits_a_phone_in_light_and_dark(found: Inspection, tmp_path: Path, width: int, dark: bool) -> None:
    with Browser(tmp_path, width=width, dark=dark) as page:
        opened(page, found, tmp_path)
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.ask("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 23, 26)" if dark else "rgb(252, 252, 250)"
        )
        assert page.complaints == []
