"""Results as data: strict JSON, provenance, comparison with an older run."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.bench.output.regressions import BaselineError, changes_since, regressions
from tilesmith.lab.bench.output.table import blocks
from tilesmith.lab.bench.result import Row, commit, result
from tilesmith.lab.report.content import Points, Table


def row(provider: str = "tilesmith", **known: Any) -> Row:
    figures: dict[str, Any] = {
        "device_ms": 0.1,
        "device_ms_spread": 0.001,
        "noise": 0.01,
        "host_us": 10.0,
        "checked": True,
    }
    return Row("silu", "large", {"rows": 4}, "bfloat16", "fwd", provider, **{**figures, **known})


def made(*rows: Row, device: str = "H200", partial: bool = False) -> dict[str, Any]:
    return result(
        rows, about={"device": device, "driver": "580", "torch": "2.11", "triton": "3.6"}, limits=None, partial=partial
    )


def test_result_has_the_documented_keys_in_strict_json() -> None:
    content = made(row(percent_of_limit=float("nan"), wall_ms=float("inf"), throttled=["power cap"]))
    read = json.loads(json.dumps(content, allow_nan=False))
    promised = {"tilesmith", "schema", "device", "driver", "torch", "triton", "commit", "date", "partial", "throttled"}
    assert promised | {"limits", "rows"} <= read.keys()
    in_rows = {
        "op", "case", "sizes", "dtype", "mode", "provider", "kind", "device_ms", "device_ms_spread", "samples",
        "method", "host_us", "wall_ms", "bytes", "flops", "tb_per_s", "tflop_per_s", "percent_of_limit", "floor_ms",
        "matrix_limit", "matrix_limit_tflop_per_s", "peak_bytes", "kept_bytes", "error", "checked", "config", "verdict",
    }  # fmt: skip
    assert in_rows <= read["rows"][0].keys()
    assert read["rows"][0]["percent_of_limit"] is None
    assert read["throttled"][0]["reasons"] == "power cap"


def test_the_commit_is_that_of_our_own_checkout_only(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert commit(tmp_path) is None
    git("init")
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) is None, "the package is not part of the checkout it lies in"
    git("add", "__init__.py")
    git("commit", "-m", "first")
    clean = commit(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "__init__.py").write_text("changed")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_commit_of_copied_files_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESMITH_COMMIT", "0123abc")
    assert commit(tmp_path) == "0123abc"


@pytest.mark.parametrize(
    ("new_ms", "verdict"), [(0.1, "equal"), (0.1019, "equal"), (0.103, "slower"), (0.097, "faster"), (0.0985, "equal")]
)
def test_change_must_exceed_the_noise_of_both_runs(new_ms: float, verdict: str) -> None:
    (change,) = changes_since(made(row()), made(row(device_ms=new_ms)))
    assert change.verdict == verdict


def test_slower_rival_is_not_a_regression() -> None:
    old, new = made(row(), row("torch")), made(row(), row("torch", device_ms=0.2))
    assert [change.verdict for change in changes_since(old, new)] == ["equal", "slower"]
    assert regressions(changes_since(old, new)) == []
    assert len(regressions(changes_since(old, made(row(device_ms=0.2))))) == 1


def test_lost_time_is_a_regression() -> None:
    (change,) = regressions(changes_since(made(row()), made(row(device_ms=None, error="refused"))))
    assert change.text == "had a time, now refused"


def test_points_of_a_sweep_are_compared_each_with_itself() -> None:
    old = made(row(config={"BLOCK": 1}), row(config={"BLOCK": 2}, device_ms=0.2))
    new = made(row(config={"BLOCK": 2}, device_ms=0.2), row(config={"BLOCK": 1}))
    assert [change.verdict for change in changes_since(old, new)] == ["equal", "equal"]


@pytest.mark.parametrize("old", [{}, {"schema": 99, "rows": []}, {**made(row(), device="A100")}])
def test_incomparable_baseline_raises(old: dict[str, Any]) -> None:
    with pytest.raises(BaselineError):
        changes_since(old, made(row()))


def shown(*rows: Row, **about: Any) -> tuple[list[Table], str]:
    parts = list(blocks(made(*rows, **about)))
    sentences = [sentence for part in parts if isinstance(part, Points) for sentence in part.sentences]
    return [part for part in parts if isinstance(part, Table)], "\n".join(sentences)


def test_table_shows_losses_and_wins() -> None:
    (table,), _ = shown(
        row(), row("torch", device_ms=0.2), row("liger", device_ms=0.05), row("compile", device_ms=0.1005)
    )
    standings = {cells[0].text: cells[-1].text for cells in table.rows}
    assert standings == {"tilesmith": "", "torch": "2.00 × faster", "liger": "2.00 × slower", "compile": "equal"}


def test_table_does_not_compare_refused_rows() -> None:
    (table,), sentences = shown(
        row(device_ms=None, error="refused, because the result is wrong", checked=False), row("torch")
    )
    assert [cells[0].text for cells in table.rows] == ["torch"]
    assert table.rows[0][-1].text == ""
    assert "tilesmith: refused, because the result is wrong" in sentences


def test_sweep_table_marks_best_point_and_unused_fields() -> None:
    reached = [{"kernel": "k", "constants": {"BLOCK": 1}, "registers": 32, "spill_bytes": 8, "occupancy": 0.5}]
    tables, sentences = shown(
        row(config={"BLOCK": 1}, launches=reached, device_ms=0.2), row(config={"BLOCK": 2}, launches=reached)
    )
    assert [cells[-1].text for cells in tables[0].rows] == ["best", ""] or [
        cells[-1].text for cells in tables[0].rows
    ] == ["", "best"]
    assert "BLOCK reaches no kernel" in sentences


def test_sweep_names_a_reason_once_below_its_table() -> None:
    wrong: dict[str, Any] = {"device_ms": None, "error": "refused, because the result is wrong: nan", "checked": False}
    (table,), sentences = shown(row(config={"BLOCK": 1}), *(row(config={"BLOCK": size}, **wrong) for size in (2, 3)))
    assert sorted(cells[-1].text for cells in table.rows) == ["best", "refused", "refused"]
    assert "BLOCK=2; BLOCK=3: refused, because the result is wrong: nan" in sentences


def test_predictions_name_a_reason_once() -> None:
    wrong = row(kind="predicted", device_ms=None, error="refused: nan", checked=False)
    _, sentences = shown(replace(wrong, case="one"), replace(wrong, case="odd"))
    assert sentences.count("refused: nan") == 1
    assert "one bfloat16 fwd; odd bfloat16 fwd: refused: nan" in sentences


def test_interrupted_run_is_marked_partial() -> None:
    assert "Partial" in shown(row(), partial=True)[1]
