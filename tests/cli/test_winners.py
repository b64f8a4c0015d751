"""Who computes by default, as it follows from stored results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilesmith.cli import winners
from tilesmith.ops.runtime import tuning

PROJECT = Path(__file__).parents[2]


def test_shipped_table_matches_the_stored_results() -> None:
    made = winners.tables(PROJECT / winners.RESULTS)
    assert made
    for path, table in made.items():
        assert json.loads(path.read_text()) == table, "run `make figures`"
    assert {path.name for path in made} == {path.name for path in tuning.SHIPPED.glob("*.json")}


def test_auto_leaves_cases_that_pytorch_wins_to_pytorch() -> None:
    contents = [json.loads(stored.read_text()) for stored in (PROJECT / winners.RESULTS).glob("*.json")]
    times: dict[tuple[str, str, str, str], float] = {}  # of the newest run that has them
    for content in sorted(contents, key=lambda content: str(content["date"])):
        times |= {
            (content["device"], row["op"], winners._bucket(row), row["provider"]): row["device_ms"]
            for row in content["rows"]
            if row["mode"] == "fwd" and row["device_ms"] and not row.get("file")  # such has no operator of its own
        }
    lost = 0
    for (device, op, bucket, provider), ms in times.items():
        if provider == "torch" and ms < 0.97 * times.get((device, op, bucket, "tilesmith"), 0.0):
            lost += 1
            table = json.loads((tuning.SHIPPED / f"{tuning.slug(device)}.json").read_text())
            assert table["winners"][op][bucket]["forward"] == "torch"
    assert lost, "a loss is stored, so this test has something to look at"


def result(tmp_path: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    content = {
        "device": "Some GPU", "driver": "1", "torch": "2", "triton": "3", "commit": "abc", "date": "2026",
        "rows": [{"op": "silu", "case": "seed", "sizes": {"rows": 1024, "cols": 512}, "dtype": "bfloat16",
                  "error": None, **row} for row in rows],
    }  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(content))
    ((path, table),) = winners.tables(tmp_path).items()
    assert path.name == "some-gpu.json"
    assert table["source"]["commit"] == "abc"
    found: dict[str, Any] = table["winners"].get("silu", {}).get("1024x512 bfloat16", {})
    return found


def row(mode: str, provider: str, ms: float | None, **more: Any) -> dict[str, Any]:
    return {"mode": mode, "provider": provider, "device_ms": ms, **more}


def test_forward_and_training_have_separate_winners(tmp_path: Path) -> None:
    assert result(
        tmp_path, row("fwd", "tilesmith", 1.0), row("fwd", "torch", 0.9), row("bwd", "tilesmith", 1.0),
        row("bwd", "torch", 2.0), row("fwd", "liger", 0.1),
    ) == {"forward": "torch", "training": "tilesmith"}  # fmt: skip


def test_difference_within_the_noise_has_no_winner(tmp_path: Path) -> None:
    assert result(tmp_path, row("fwd", "tilesmith", 1.0), row("fwd", "torch", 0.99)) == {"forward": "tilesmith"}


@pytest.mark.parametrize("broken", [{"error": "wrong"}, {"device_ms": None}], ids=str)
def test_row_without_a_time_does_not_win(tmp_path: Path, broken: dict[str, Any]) -> None:
    assert result(tmp_path, row("fwd", "tilesmith", 1.0), {**row("fwd", "torch", 0.5), **broken}) == {}


def test_undecided_size_is_left_out(tmp_path: Path) -> None:
    result(tmp_path, row("bwd", "tilesmith", 2.0), row("bwd", "torch", 1.0))
    ((_, table),) = winners.tables(tmp_path).items()
    assert table["winners"] == {}


def test_newer_partial_run_keeps_older_winners(tmp_path: Path) -> None:
    def stored(date: str, *rows: dict[str, Any]) -> dict[str, Any]:
        one = {"op": "silu", "case": "seed", "sizes": {"rows": 1024, "cols": 512}, "dtype": "bfloat16", "error": None}
        about = dict.fromkeys(winners.PROVENANCE, "same")
        return {**about, "date": date, "rows": [{**one, **row} for row in rows]}

    old = stored(
        "2026", *(row(mode, name, ms) for mode in ("fwd", "bwd") for name, ms in (("tilesmith", 2.0), ("torch", 1.0)))
    )
    new = stored("2027", row("fwd", "tilesmith", 0.5), row("fwd", "torch", 1.0), row("bwd", "tilesmith", 0.1))
    for name, content in (("a-new", new), ("b-old", old)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    ((_, table),) = winners.tables(tmp_path).items()
    # 0.5 and 2.0 beside 1.0 and 1.0: PyTorch's own backward is that of the older run, and ours beside it.
    assert table["winners"]["silu"] == {"1024x512 bfloat16": {"forward": "tilesmith", "training": "torch"}}
