"""What a survey reports: quantiles, shares, worst cases, tables and page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "inspect"))
from browser import CHROMIUM, Browser  # a module of the tests

from tilesmith.lab.bench.survey.page import blocks, write_html
from tilesmith.lab.bench.survey.summary import LARGE_BYTES, quantile, summaries, summary
from tilesmith.lab.report.terminal import show_block


def direction(ours: float, torch: float, auto: float | None = None, **more: Any) -> dict[str, Any]:
    times = {"tilesmith": ours, "auto": auto or ours, "torch": torch}
    return {"device_ms": times, "noise": {}, "errors": {}, "auto": "tilesmith", "bytes": 0, **more}


def case(number: int, op: str = "softmax", wrong: str | None = None, **directions: Any) -> dict[str, Any]:
    drawn = {"rows": number, "columns": 7, "dtype": "bfloat16"}
    return {"op": op, "number": number, "name": f"{number}×7 bf16", "drawn": drawn, "file": None, "wrong": wrong,
            "seconds": 0.5, "directions": directions}  # fmt: skip


def survey(*cases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"device": "Some GPU", "seed": 3, "drawn": 2, "limits": {}, "partial": False, "cases": list(cases), **more}


def test_quantile_interpolates() -> None:
    assert [quantile([4.0, 1.0, 2.0], share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 4.0]


def test_speed_is_the_rivals_time_over_ours() -> None:
    one = summary("softmax", [case(1, fwd=direction(1.0, 2.0), bwd=direction(2.0, 1.0))])
    assert one.beside_rival is not None
    assert one.beside_rival.count == 2
    assert one.beside_rival.geometric_mean == pytest.approx(1.0)
    assert one.beside_rival.quantiles[0] == 0.5
    assert one.beside_rival.quantiles[3] == 1.25


def test_fastest_rival_counts() -> None:
    found = direction(1.0, 2.0)
    found["device_ms"]["quack"] = 0.8
    (entry,) = summary("softmax", [case(1, fwd=found)]).entries
    assert (entry.rival, entry.beside_rival, entry.beside_torch) == ("quack", 0.8, 2.0)


def test_shares_count_cases_within_the_margins() -> None:
    autos = (1.0, 1.02, 1.05, 1.09)  # of PyTorch's time
    one = summary("softmax", [case(number, fwd=direction(1.04, 1.0, auto)) for number, auto in enumerate(autos)])
    assert one.auto_as_fast == 0.5
    assert one.auto_behind == 0.25
    assert one.best_as_fast == 1.0
    assert [entry.case for entry in one.worst_auto] == ["3×7 bf16", "2×7 bf16"]


def test_limit_counts_large_memory_bound_cases_only() -> None:
    large: dict[str, Any] = {"bytes": LARGE_BYTES, "copy_ms": 0.9, "floor_ms": 0.9}
    one = summary(
        "softmax",
        [
            case(1, fwd=direction(1.0, 1.0, **large)),
            case(2, fwd=direction(2.0, 1.0, **large)),
            case(3, fwd=direction(9.0, 1.0, **{**large, "bytes": LARGE_BYTES - 1})),
            case(4, fwd=direction(9.0, 1.0, **{**large, "floor_ms": 5.0})),  # compute-bound
        ],
    )
    assert list(one.of_limit) == [0.9, 0.45]
    assert one.at_limit == 0.5


def test_worst_ten_are_named_worst_first() -> None:
    one = summary("softmax", [case(number, fwd=direction(1.0 + number, 1.0)) for number in range(1, 15)])
    assert [entry.name for entry in one.worst][:2] == ["softmax 14×7 bf16 forward", "softmax 13×7 bf16 forward"]
    assert len(one.worst) == 10


def test_several_operators_get_a_line_for_all() -> None:
    found = summaries(survey(case(1, fwd=direction(1, 1)), case(1, "silu", wrong="tilesmith: forward: element 0")))
    assert [one.op for one in found] == ["softmax", "silu", "all"]
    assert found[1].beside_rival is None
    assert found[2].wrong == ["silu 1×7 bf16: tilesmith: forward: element 0"]


def test_case_without_rivals_has_no_speed() -> None:
    found = direction(1.0, 1.0)
    del found["device_ms"]["torch"]
    one = summary("softmax", [case(1, fwd=found)])
    assert one.beside_rival is None
    assert one.auto_as_fast is None


def shown(content: dict[str, Any]) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        for block in blocks(content):
            show_block(console, block)
    return captured.get()


MADE_UP = survey(
    case(5, fwd=direction(1.0, 2.0), bwd=direction(1.3, 1.0, 1.2)),
    case(6, fwd={**direction(1.0, 2.0), "errors": {"liger": "not installed: liger"}}),
    case(9, "silu", wrong="tilesmith: forward: element 0 is <b>1</b>"),
)


def test_terminal_shows_wrong_cases_first() -> None:
    text = shown(MADE_UP)
    assert text.lstrip().startswith("•  WRONG: silu 9×7 bf16: tilesmith: forward")
    assert "softmax 5×7 bf16 backward" in text
    assert "liger: not installed: liger (1 cases)" in text
    assert "3 cases, seed 3, 2 an operator, on Some GPU; 0.50 s a case" in text


def test_page_has_a_curve_an_operator_and_names_every_point() -> None:
    page = write_html(MADE_UP)
    assert "<title>Survey of softmax, silu on Some GPU" in page
    assert page.index("Wrong") < page.index("Curves")
    for name in ("softmax 5×7 bf16 forward", "softmax 5×7 bf16 backward", "softmax 6×7 bf16 forward"):
        assert f'aria-label="{name}: ' in page
    assert "&lt;b&gt;1&lt;/b&gt;" in page
    assert not re.search(r'(src|href)="https?:', page)
    assert page.count("<polyline") >= 4, "two curves for softmax, two for all"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_figures_of_cases_with_long_names_are_in_sight(tmp_path: Path) -> None:
    one = case(1, forward=direction(1.0, 1.2))
    one["name"] = "batch=14 heads=71 key_heads=8 queries=256 keys=256 head_size=40 causal window=4096 bf16"
    page = tmp_path / "survey.html"
    page.write_text(write_html(survey(one)), encoding="utf-8")
    with Browser(tmp_path, width=1200) as browser:
        browser.open(page)
        hidden = (
            "[...document.querySelectorAll('table')].filter(t => t.offsetWidth > t.parentElement.clientWidth).length"
        )
        assert browser.ask(hidden) == 0


def test_table_without_rows_is_left_out() -> None:
    alone = direction(1.0, 1.2)
    del alone["device_ms"]["auto"]
    assert "auto beside PyTorch</figcaption>" not in write_html(survey(case(1, forward=alone)))


def test_empty_survey_has_a_page() -> None:
    assert "Survey of" in write_html(survey(partial=True))
    assert "Partial" in shown(survey(partial=True))
