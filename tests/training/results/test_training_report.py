"""Reports of training runs: tables, curves and pages."""

from __future__ import annotations

from typing import Any

from tilesmith.lab.report.content import Table
from tilesmith.training.results.report import (
    comparison,
    comparison_page,
    figures_table,
    final_loss,
    loss_curves,
    run_page,
)


def run(variant: str, step_ms: float, **others: Any) -> dict[str, Any]:
    return {
        "model": "llama", "variant": variant, "about": "parts of a test", "losses": [3.0, 2.0, 1.0], "best_loss": 0.5,
        "config": {"batch_size": 8, "dtype": "float32"}, "step_ms": step_ms, "forward_ms": 1.0, "backward_ms": 2.0,
        "optimizer_ms": 0.5, "samples_per_s": 8000 / step_ms, "tokens_per_s": 1e6 / step_ms, "peak_bytes": 2**30,
        "parameters": 1000, "partial": False, "captured": "nothing", **others,
    }  # fmt: skip


def compared(*runs: dict[str, Any], differs: tuple[str, ...] = ()) -> dict[str, Any]:
    parity = [
        {
            "variant": name, "passed": name not in differs, "logits_error": 1e-7, "logits_allowed": 2e-7,
            "worst_gradient": "layers.0.qkv", "worst_gradient_error": 1e-6, "worst_gradient_allowed": 2e-6,
            "difference": "the gradient of layers.0.qkv: off" if name in differs else "",
        }
        for name in (*(one["variant"] for one in runs), *differs)
    ]  # fmt: skip
    return {"model": "llama", "parity": parity, "variants": list(runs), "device": "Test GPU"}


def lines(result: dict[str, Any]) -> dict[str, list[str]]:
    (table,) = figures_table(result)
    assert isinstance(table, Table)
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_improvement_compares_last_with_first_and_says_worse() -> None:
    found = lines(compared(run("v1", 20.0), run("v4", 4.0, peak_bytes=2 * 2**30)))
    assert found["Batch"] == ["20.0 ms", "4.00 ms", "5.00 × better"]
    assert found["Training speed, samples/s"][-1] == "5.00 × better"
    assert found["Peak memory"] == ["1.00 GiB", "2.00 GiB", "2.00 × worse"]
    assert found["Forward"][-1] == "1.00 × better"


def test_unmeasured_figures_are_left_out() -> None:
    assert "Peak memory" not in lines(compared(run("v1", 20.0, peak_bytes=None), run("v2", 10.0, peak_bytes=None)))
    assert lines(compared(run("v1", 20.0, forward_ms=None), run("v2", 10.0)))["Forward"] == ["–", "1.00 ms", "–"]


def test_table_names_what_a_graph_captures() -> None:
    found = lines(compared(run("v1", 20.0), run("v3", 5.0, captured="passes"), run("v4", 4.0, captured="step")))
    assert found["As one CUDA graph"] == ["", "forward, backward", "the whole step", ""]
    assert "As one CUDA graph" not in lines(compared(run("v1", 20.0), run("v2", 10.0)))


def test_table_shows_the_largest_difference_of_losses() -> None:
    found = lines(compared(run("v1", 20.0), run("v2", 10.0, losses=[3.0, 2.25, 1.0])))
    assert found["Largest difference from v1's losses"][:2] == ["0.0e+00", "2.5e-01"]


def test_final_loss_is_the_mean_of_the_last_steps() -> None:
    assert final_loss({"losses": [100.0, *range(10)]}) == 4.5


def test_version_that_fails_parity_has_no_time() -> None:
    result = compared(run("v1", 20.0), differs=("v2",))
    said = str(comparison(result))
    assert "v2 was not timed" in said
    assert "v2 was not timed" in comparison_page(result)


def test_loss_curves_stay_within_their_chart() -> None:
    (chart,) = loss_curves([run("v1", 20.0), run("v2", 10.0, losses=[5.0] * 200)], "Loss").charts
    for series in chart.series:
        assert len(series.marks) <= 21
        assert all(0 <= chart.x.share(x) <= 1 and 0 <= chart.y.share(y) <= 1 for x, y in series.line)
    assert chart.ceilings[0].points[0][1] == 0.5
    assert all(chart.y.low <= tick <= chart.y.high for tick, _ in chart.y.ticks)


def test_loss_curves_leave_out_what_is_not_finite() -> None:
    losses = [3.0, 2.0, float("nan"), float("inf")]
    (chart,) = loss_curves([run("v1", 20.0, losses=losses), run("v2", 10.0, losses=[float("nan")] * 4)], "Loss").charts
    assert chart.series[0].line == [(1, 3.0), (2, 2.0)]
    assert [mark.x for mark in chart.series[0].marks] == [1, 2]
    assert not chart.series[1].line


def test_pages_are_self_contained() -> None:
    for page in (run_page(run("v1", 20.0)), comparison_page(compared(run("v1", 20.0), run("v2", 10.0)))):
        assert "http" not in page
        assert "<script" not in page
        assert "best possible 0.500" in page
