import copy
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.bench.output.charts import ChartError, png, roofline, size_curves
from tilesmith.lab.bench.output.contests import compare_times, contests, duration_with_spread
from tilesmith.lab.bench.output.page import write_html
from tilesmith.lab.report.number_format import figure, memory

CHROMIUM = shutil.which("chromium")
FIXTURE: dict[str, Any] = json.loads(Path(__file__).with_name("bench_fixture.json").read_text())
EVIL = '<script>alert("kernel")</script>'


class Page(HTMLParser):
    """Parses a page into tables, text, and elements with attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self.rows[-1][-1] += data.strip()

    def row(self, *beginning: str) -> list[str]:
        return next(row for row in self.rows if tuple(row[: len(beginning)]) == beginning and len(row) == 13)


def result(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(FIXTURE), **changes}


def with_row(**changes: Any) -> dict[str, Any]:
    """Return the fixture with its first row changed: ours, rms_norm forward, 16384 × 512."""
    changed = result()
    changed["rows"][0].update(changes)
    return changed


def test_counts_wins_draws_and_losses_against_the_best_rival() -> None:
    headlines = dict(re.findall(r"<dt>([^<]*)</dt>\s*<dd[^>]*>([^<]*)</dd>", write_html(FIXTURE)))
    assert headlines["cases faster than the best rival"] == "5 of 12"
    assert headlines["cases equal to the best rival"] == "4 of 12"
    assert headlines["cases slower than the best rival"] == "3 of 12"
    assert headlines["copy limit of NVIDIA H200, measured"] == "4.27 TB/s"
    assert headlines["of our runs failed and have no time"] == "1"
    assert headlines["rows predicted, not measured"] == "1"


@pytest.mark.parametrize(
    ("ours", "rival", "standing"),
    [
        ({"device_ms": 1.0, "noise": 0.02}, {"device_ms": 1.015, "noise": 0.001}, "equal"),
        ({"device_ms": 1.0, "noise": 0.01}, {"device_ms": 1.015, "noise": 0.001}, "faster"),
        ({"device_ms": 1.03, "noise": 0.01}, {"device_ms": 1.0, "noise": 0.01}, "slower"),
        ({"device_ms": 1.0, "device_ms_spread": 0.1}, {"device_ms": 1.05, "device_ms_spread": 0.0}, "equal"),
    ],
)
def test_difference_within_noise_is_equal(ours: dict[str, Any], rival: dict[str, Any], standing: str) -> None:
    assert compare_times(ours, rival) == standing


def test_wrong_rival_is_not_compared() -> None:
    changed = result()
    for row in changed["rows"]:
        if (row["case"], row["mode"], row["provider"]) == ("large", "fwd", "liger"):
            row["checked"], row["device_ms"] = False, 0.001
    contest = next(one for one in contests(changed) if (one.case, one.mode) == ("large", "fwd"))
    assert contest.best_rival is not None
    assert contest.best_rival["provider"] == "quack"
    row = Page(write_html(changed)).row("large 16384 × 4096 bf16", "liger")
    assert row[2] == "no time"
    assert row[-1] == "the result is wrong"


def test_fastest_point_of_a_sweep_is_compared() -> None:
    changed = result()
    slow = {**changed["rows"][0], "device_ms": 1.0, "config": {"BLOCK_SIZE": 64}}
    changed["rows"].insert(0, slow)
    assert contests(changed)[0].ours == changed["rows"][1]


def test_table_shows_measured_figures() -> None:
    page = Page(write_html(FIXTURE))
    assert page.row("large 16384 × 4096 bf16", "tilesmith")[2:] == [
        "63.8 ± 0.38 µs", "–", "62.9 µs", "99 %", "4.21", "4.21", "14.0 µs", "77.8 µs", "128 MiB", "64.0 KiB",
        "BLOCK_SIZE=4096 num_warps=8; graph, 50 samples",
    ]  # fmt: skip
    assert page.row("large 16384 × 4096 bf16", "torch")[3] == "1.26 × slower"
    assert page.row("widest 4096 × 32768 bf16", "compile")[3] == "1.01 × faster"
    assert page.row("wide 16384 × 8192 bf16", "compile")[3] == "equal"


def test_lists_providers_without_a_time() -> None:
    text = Page(write_html(FIXTURE)).text
    assert "Without a time" in text
    assert "not installed: pip install apex" in text
    assert "gradient x: error 0.4, allowed 0.01" in text


def test_predictions_are_marked_and_have_no_time() -> None:
    page = Page(write_html(FIXTURE))
    row = page.row("large 16384 × 4096 fp32", "tilesmith")
    assert row[2] == "predicted ≥ 112 µs"
    assert "come from a datasheet, not from a measurement." in page.text
    shown = [attributes for _, attributes in page.elements if "mark" in (attributes.get("class") or "").split()]
    open_marks = [attributes for attributes in shown if "open" in (attributes["class"] or "").split()]
    assert ["predicted, at best 112 µs" in (attributes["aria-label"] or "") for attributes in open_marks] == [True]


def test_a_page_of_nothing_but_predictions_names_the_datasheet() -> None:
    rows = [row for row in FIXTURE["rows"] if row["kind"] == "predicted"]
    limits = {"copy_tb_per_s": 4.8, "source": "datasheet: example"}
    text = Page(write_html(result(rows=rows, limits=limits, throttled=[], partial=False))).text
    assert "copy limit of NVIDIA H200, by its datasheet" in text
    assert "Nothing was measured." in text
    assert "faster than" not in text


def test_page_warns_of_partial_throttled_and_impossible_rows() -> None:
    text = Page(write_html(FIXTURE)).text
    assert "Partial: the run was stopped" in text
    assert "throttled during rms_norm wide bfloat16 bwd tilesmith: power cap" in text
    assert "Above the limit" in text
    assert "(compile 104 %)" in text
    assert Page(write_html(FIXTURE)).row("wide 16384 × 8192 bf16", "tilesmith")  # forward, which was not throttled
    throttled = [row for row in Page(write_html(FIXTURE)).rows if row and "throttled (power cap)" in row[-1]]
    assert [row[:2] for row in throttled] == [["wide 16384 × 8192 bf16", "tilesmith"]]


def test_page_without_problems_has_no_warnings() -> None:
    rows = [row for row in FIXTURE["rows"] if row["case"] == "large" and row["kind"] == "measured"]
    assert "Mind this first" not in write_html(result(rows=rows, throttled=[], partial=False))


def test_page_accepts_null_for_any_value() -> None:
    rows = [
        {name: value if name in ("op", "case", "provider") else None for name, value in row.items()}
        for row in FIXTURE["rows"]
    ]
    text = Page(write_html({**dict.fromkeys(FIXTURE), "rows": rows})).text
    assert "rms_norm" in text
    assert "unknown" in text
    assert "Nothing on" in Page(write_html(result(rows=[]))).text


def test_names_a_users_own_operator_after_itself() -> None:
    assert Page(write_html(with_row(file="my_kernel.py"))).row("medium 16384 × 512 bf16", "rms_norm")


def test_the_same_figures_are_in_the_chart_and_in_its_table() -> None:
    drawn = roofline(FIXTURE)
    assert drawn is not None
    chart = drawn.charts[0]
    assert drawn.legend == ["tilesmith", "compile", "quack", "liger", "torch"]
    marks = [mark for series in chart.series for mark in series.marks]
    assert len(marks) == len(chart.table.rows) == 53
    assert {ceiling.label for ceiling in chart.ceilings} >= {"copy 4.27 TB/s", "bf16 matrix 755 TFLOP/s"}
    for mark in marks:
        assert 0 < chart.x.share(mark.x) < 1
        assert 0 < chart.y.share(mark.y) < 1


def test_ceiling_outside_the_chart_is_left_out() -> None:
    rows = [row for row in FIXTURE["rows"] if row["op"] == "rms_norm"]
    drawn = roofline(result(rows=rows))
    assert drawn is not None
    assert [ceiling.label for ceiling in drawn.charts[0].ceilings] == ["copy 4.27 TB/s", "read 4.50 TB/s"]


def test_a_kernel_that_fails_its_check_is_not_drawn() -> None:
    for drawing in (roofline, size_curves):
        before, after = drawing(FIXTURE), drawing(with_row(checked=False))
        assert before is not None
        assert after is not None
        count = [sum(len(one.marks) for chart in drawn.charts for one in chart.series) for drawn in (before, after)]
        assert count[0] - count[1] == 1


def test_launch_bound_rows_are_not_drawn() -> None:
    html = write_html(with_row(floor_ms=0.002))
    assert "Not drawn: 1 launch-bound rows, whose work takes less than the 2.10 µs of a launch" in html
    assert "Not drawn" not in write_html(FIXTURE)
    before, after = roofline(FIXTURE), roofline(with_row(floor_ms=0.002))
    assert before is not None
    assert after is not None
    assert len(before.charts[0].table.rows) - len(after.charts[0].table.rows) == 1


@pytest.mark.parametrize(
    ("sizes", "ticks"),
    [
        ((1_000_000, 30_000_000), ["1 MB", "2 MB", "5 MB", "10 MB", "20 MB"]),
        ((4_000, 40_000_000), ["10 KB", "100 KB", "1 MB", "10 MB"]),
        ((4, 800_000_000), ["1 KB", "1 MB", "1 GB"]),
    ],
)
def test_axis_has_few_ticks(sizes: tuple[int, int], ticks: list[str]) -> None:
    rows = [{**FIXTURE["rows"][0], "case": str(size), "bytes": size} for size in sizes]
    drawn = size_curves(result(rows=rows))
    assert drawn is not None
    assert [text for _, text in drawn.charts[0].x.ticks] == ticks


def test_size_curves_show_the_bounding_rate() -> None:
    drawn = size_curves(FIXTURE)
    assert drawn is not None
    assert [(chart.title, chart.y.label) for chart in drawn.charts] == [
        ("rms_norm forward, bf16", "TB/s"),
        ("rms_norm backward, bf16", "TB/s"),
        ("matmul forward, bf16", "TFLOP/s"),
    ]
    ours = drawn.charts[0].series[0]
    assert len(ours.marks) == 4
    assert len(ours.line) == 3  # 16384 × 8192 and 4096 × 32768 are the same size


def test_marks_are_accessible_by_keyboard_and_label() -> None:
    elements = Page(write_html(FIXTURE)).elements
    marks = [attributes for _, attributes in elements if "mark" in (attributes.get("class") or "").split()]
    assert len(marks) > 100
    assert all(attributes["tabindex"] == "0" and attributes["role"] == "img" for attributes in marks)
    labels = [attributes["aria-label"] or "" for attributes in marks]
    assert (
        "rms_norm forward, large 16384 × 4096 bf16: tilesmith BLOCK_SIZE=4096 num_warps=8, 63.8 ± 0.38 µs, "
        "4.21 TB/s, 4.21 TFLOP/s, 99 % of limit"
    ) in labels


def test_page_needs_no_requests_and_no_script() -> None:
    html = write_html(with_row(provider=EVIL, case=EVIL, verdict=EVIL, error=None))
    elements = [tag for tag, _ in Page(html).elements]
    assert not {"script", "link", "img", "iframe"} & set(elements)
    assert not re.search(r"https?:|//\w|@import|url\(", html)


def test_page_shows_provenance() -> None:
    text = Page(write_html(FIXTURE)).text
    for said in ("NVIDIA H200", "580.00", "2.11.0", "3.6.0", "f1x7ure", "2026-11-14"):
        assert said in text


@pytest.mark.parametrize(
    ("value", "text"), [(4.2666, "4.27"), (755.2, "755"), (12345.6, "12,346"), (0.0123, "0.0123"), (None, "–")]
)
def test_figures_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_times_use_ms_or_microseconds() -> None:
    assert duration_with_spread({"device_ms": 0.0638, "device_ms_spread": 0.00038}) == "63.8 ± 0.38 µs"
    assert duration_with_spread({"device_ms": 1.234, "device_ms_spread": 0.01}) == "1.23 ± 0.01 ms"
    assert duration_with_spread({"device_ms": None}) == "–"
    assert memory(3 << 30) == "3.00 GiB"


def test_png_without_matplotlib_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ChartError, match="pip install matplotlib"):
        png(FIXTURE)


def test_png_is_drawn() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert png(FIXTURE).startswith(b"\x89PNG")
    with pytest.raises(ChartError, match="nothing to draw"):
        png(result(rows=[]))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_browser_renders_the_bench_page(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(write_html(FIXTURE), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert "CONSOLE" not in shown.stderr
    page = Page(shown.stdout)
    assert "5 of 12" in page.text
    assert page.row("large 16384 × 4096 bf16", "tilesmith")[2] == "63.8 ± 0.38 µs"
    assert sum(tag == "polyline" for tag, _ in page.elements) > 10


def test_failed_point_of_a_sweep_is_named_in_a_wrapped_column() -> None:
    rows = FIXTURE["rows"]
    point = {**next(row for row in rows if row["provider"] == "tilesmith"), "config": {"BLOCK_SIZE": 1000}}
    points = [point, {**point, "config": {"BLOCK_SIZE": 64}, "device_ms": None, "error": "refused: wrong " * 20}]
    page = write_html({**FIXTURE, "rows": points})
    assert ", BLOCK_SIZE=64" in Page(page).text
    assert re.search(r'<td class="prose">\s*<span class="bad">\s*refused: wrong', page)
