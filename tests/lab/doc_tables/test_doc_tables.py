import json
from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.doc_tables.generate import main

FIXTURE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "bench" / "bench_fixture.json").read_text())
REPOSITORY = Path(__file__).parents[3]
PAGE = "Speed\n\n<!-- figures: rms_norm -->\n| old |\n<!-- end figures -->\n\nMore words.\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    return tmp_path


def store(project: Path, name: str, **changes: Any) -> None:
    (project / "benchmarks/results" / name).write_text(json.dumps({**FIXTURE, **changes}))


def renewed(project: Path) -> str:
    assert main(["--root", str(project)]) == 0
    return (project / "README.md").read_text()


def test_the_tables_of_this_project_are_up_to_date() -> None:
    assert main(["--check", "--root", str(REPOSITORY)]) == 0


def test_writes_measurements_with_provenance(project: Path) -> None:
    store(project, "h200.json")
    text = renewed(project)
    assert (
        "| large 16384 × 4096 bf16 | forward | 63.8 ± 0.38 µs | 4.21 | 4.21 | 99 % | liger | 66.6 µs | 1.04 × faster |"
        in text
    )
    assert (
        "| widest 4096 × 32768 bf16 | forward | 133 ± 0.8 µs | 4.05 | 4.05 | 95 % | compile | 131 µs | 1.01 × slower |"
        in text
    )
    assert "NVIDIA H200, driver 580.00; PyTorch 2.11.0, Triton 3.6.0; commit f1x7ure; 2026-11-14" in text
    assert "`benchmarks/results/h200.json`" in text
    assert "stopped before its end" in text
    assert "matmul" not in text
    assert "| old |" not in text
    assert text.startswith("Speed\n\n<!-- figures: rms_norm -->\n")
    assert text.endswith("\n<!-- end figures -->\n\nMore words.\n")


def test_host_times_are_medians_of_the_newest_runs(project: Path) -> None:
    (project / "README.md").write_text(PAGE.replace("figures: rms_norm", "figures: host-times"))
    assert "_Not measured yet._" in renewed(project)
    rows = [{**row, "host_us": 1000.0 if row["provider"] == "torch" else 20.0 + 4 * row["sizes"]["cols"] / 4096}
            for row in FIXTURE["rows"] if row["op"] == "rms_norm"]  # fmt: skip
    store(project, "new.json", rows=rows)
    store(project, "old.json", rows=[{**row, "host_us": 7.0} for row in rows], date="2025-01-01T00:00:00+00:00")
    ours = sorted({row["host_us"] for row in rows if row["provider"] == "tilesmith" and row["mode"] == "fwd"})
    assert len(ours) > 1
    (line,) = [line for line in renewed(project).splitlines() if line.startswith("| rms_norm |")]
    assert ours[0] <= float(line.split("|")[2]) <= ours[-1]
    assert line.split("|")[3].strip() == "1000"


def test_writing_twice_changes_nothing(project: Path) -> None:
    store(project, "h200.json")
    assert renewed(project) == renewed(project)


def test_check_reports_outdated_pages_without_writing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(project, "h200.json")
    assert main(["--check", "--root", str(project)]) == 1
    assert "README.md: out of date" in capsys.readouterr().out
    assert (project / "README.md").read_text() == PAGE
    renewed(project)
    assert main(["--check", "--root", str(project)]) == 0


def test_uses_the_newest_result_of_each_device(project: Path) -> None:
    store(project, "a-new.json", date="2026-12-01T00:00:00+00:00", commit="newer")
    store(project, "b-old.json")
    store(project, "other.json", device="NVIDIA H100")
    text = renewed(project)
    assert "newer" in text
    assert "b-old.json" not in text
    assert text.index("NVIDIA H100") < text.index("NVIDIA H200")


def test_unmeasured_cases_of_the_newest_run_follow_from_an_older_run(project: Path) -> None:
    store(project, "old.json")
    before = renewed(project)
    sizes = [line.split("|")[1:3] for line in before.splitlines() if line.startswith("|")][2:]
    measured = {(row["case"], row["mode"]) for row in FIXTURE["rows"] if row["op"] == "rms_norm"}
    case, mode = min(measured)
    rows = [row for row in FIXTURE["rows"] if (row["op"], row["case"], row["mode"]) == ("rms_norm", case, mode)]
    store(project, "new.json", date="2026-12-01T00:00:00+00:00", rows=rows)
    after = renewed(project)
    assert after.index("new.json") < after.index("old.json")
    shown = [line.split("|")[1:3] for line in after.splitlines() if line.startswith("|")]
    assert sorted(one for one in shown if one in sizes) == sorted(sizes), "each case once"


def test_a_newer_result_of_another_operator_does_not_hide_an_older_one(project: Path) -> None:
    store(project, "old.json")
    rows = [row for row in FIXTURE["rows"] if row["op"] == "matmul"]
    store(project, "new.json", date="2026-12-01T00:00:00+00:00", rows=rows)
    assert "old.json" in renewed(project)


def test_operator_without_results_is_marked_not_measured(project: Path) -> None:
    (project / "docs/silu.md").write_text("<!-- figures: silu of float8 -->\n<!-- end figures -->\n")
    store(project, "h200.json")  # its silu rows failed or are predicted
    renewed(project)
    assert (project / "docs/silu.md").read_text() == (
        "<!-- figures: silu of float8 -->\n_Not measured yet._\n<!-- end figures -->\n"
    )


def test_works_before_there_are_any_results_or_pages(tmp_path: Path) -> None:
    assert main(["--check", "--root", str(tmp_path)]) == 0


def test_failed_case_stays_in_the_table(project: Path) -> None:
    rows = json.loads(json.dumps(FIXTURE["rows"]))
    rows[0].update(device_ms=None, checked=False, error="wrong")
    store(project, "h200.json", rows=rows)
    assert "| medium 16384 × 512 bf16 | forward | failed: no time |" in renewed(project)


@pytest.mark.parametrize("page", ["<!-- figures: silu -->\nno end", f"<!-- figures: silu -->\n{PAGE}"])
def test_unclosed_marker_is_an_error(project: Path, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "README.md").write_text(page)
    assert main(["--root", str(project)]) == 2
    assert "<!-- figures: silu --> is not followed by <!-- end figures -->" in capsys.readouterr().err
    assert (project / "README.md").read_text() == page


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}'])
def test_file_that_is_not_a_result_is_an_error(project: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "benchmarks/results/broken.json").write_text(content)
    assert main(["--root", str(project)]) == 2
    assert "broken.json is not a result" in capsys.readouterr().err


def store_model(project: Path, name: str, **content: Any) -> None:
    (project / "benchmarks/results/models").mkdir(exist_ok=True)
    stamp = {"device": "NVIDIA H200", "driver": "580.00", "torch": "2.11.0", "triton": "3.6.0", "date": "2026-11-15"}
    (project / "benchmarks/results/models" / name).write_text(json.dumps({**stamp, **content}))


def test_model_versions_are_columns(project: Path) -> None:
    (project / "README.md").write_text(PAGE.replace("rms_norm", "models.llama"))
    assert "_Not measured yet._" in renewed(project)
    times = {"forward_ms": 1.5, "backward_ms": 3.0, "optimizer_ms": 0.3, "samples_per_s": 1592.8, "peak_bytes": 2**30}
    variants = [
        {"variant": name, "step_ms": step, "losses": [6.9, 2.88], **times}
        for name, step in (("v1", 34.2), ("v4", 5.02))
    ]
    store_model(project, "old.json", model="llama", commit="0" * 40, date="2026-11-14", variants=variants[:1])
    store_model(project, "new.json", model="llama", commit="abc" + "0" * 37 + "-dirty", variants=variants)
    text = renewed(project)
    assert "|  | v1 | v4 |\n" in text
    assert "| step | 34.2 ms | 5.02 ms |\n" in text
    assert "| loss at the end | 2.8800 | 2.8800 |\n" in text
    assert "commit abc000000000 and changes; 2026-11-15; `benchmarks/results/models/new.json`" in text


def test_third_party_model_versions_are_rows(project: Path) -> None:
    (project / "README.md").write_text(PAGE.replace("rms_norm", "models.llama-1b"))
    row = {"version": "tilesmith", "milliseconds": 127.3, "peak_bytes": 2**34, "losses": [12.1738, 10.9872]}
    store_model(project, "hf.json", model="llama-1b", commit="0" * 40, rows=[row])
    text = renewed(project)
    assert "|  | step | peak memory | first loss | tenth loss |\n" in text
    assert "| tilesmith | 127 ms | 16.0 GiB | 12.174 | 10.987 |\n" in text
    block = {"version": "compile", "milliseconds": 8.88, "graph_milliseconds": 5.5, "peak_bytes": 2**31}
    store_model(project, "block.json", model="llama-1b", commit="0" * 40, date="2026-11-16", rows=[block])
    text = renewed(project)
    assert "|  | step | as a CUDA graph | peak memory |\n" in text
    assert "| compile | 8.88 ms | 5.50 ms | 2.00 GiB |\n" in text


@pytest.mark.parametrize(("is_rounding", "shown"), [(True, "| rounding |"), (False, "| more than rounding |")])
def test_proofs_are_rows(project: Path, is_rounding: bool, shown: str) -> None:
    proof = {
        "model": "gpt2",
        "parameters": 3_600_000,
        "settings": {"steps": 7, "batch_size": 2, "seq_len": 64, "dtype": "bfloat16"},
        "differences": [{"what": what, "patched": 1e-3, "other_rounding": 2e-3} for what in ("gradients", "loss")],
        "runs": [{"name": "patched", "losses": [5.0, 2.5]}, {"name": "unpatched", "losses": [5.0, 2.25]}],
        "is_rounding": is_rounding,
    }
    (project / "benchmarks/proofs").mkdir()
    (project / "benchmarks/proofs/gpt2.json").write_text(json.dumps(proof))
    (project / "docs/prove.md").write_text("<!-- figures: proofs -->\n<!-- end figures -->\n")
    assert main(["--root", str(project)]) == 0
    text = (project / "docs/prove.md").read_text()
    assert "| gpt2 | 4 million | 7 steps of 2 × 64 tokens, bfloat16 | 1.0e-03; 2.0e-03 |" in text
    assert "| 2.500; 2.250 |" in text
    assert shown in text


def test_model_marker_selects_a_dtype(project: Path) -> None:
    for dtype, date in (("float32", "2026-11-14"), ("bfloat16", "2026-11-15")):
        row = {"version": dtype, "milliseconds": 1.0, "peak_bytes": 2**30}
        store_model(project, f"{dtype}.json", model="block", commit="0" * 40, date=date, dtype=dtype, rows=[row])
    for asked, shown in (("block", "bfloat16"), ("block.float32", "float32"), ("block.bfloat16", "bfloat16")):
        (project / "README.md").write_text(PAGE.replace("rms_norm", f"models.{asked}"))
        assert f"| {shown} | 1.00 ms |" in renewed(project)
    (project / "README.md").write_text(PAGE.replace("rms_norm", "models.block.float16"))
    assert "_Not measured yet._" in renewed(project)


def test_damaged_model_result_error_names_the_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_model(project, "broken.json")
    assert main(["--root", str(project)]) == 2
    assert "broken.json is not a result of a model" in capsys.readouterr().err


def store_survey(project: Path, name: str, date: str, op: str, *times: tuple[float, float, float]) -> None:
    cases = [
        {"op": op, "directions": {"fwd": {
            "device_ms": {"torch": torchs, "auto": auto, "tilesmith": ours}, "copy_ms": 1.0, "bytes": 1 << 27,
        }}}
        for torchs, auto, ours in times
    ]  # fmt: skip
    (project / "benchmarks/surveys").mkdir(exist_ok=True)
    content = {"kind": "survey", "date": date, "cases": cases}
    (project / "benchmarks/surveys" / name).write_text(json.dumps(content))


def test_chart_draws_models_and_every_stored_case(project: Path) -> None:
    assert main(["--root", str(project)]) == 0
    assert not (project / "docs/images").exists(), "nothing is stored yet"
    store(project, "h200.json")
    row = {"version": "transformers", "milliseconds": 200.0, "peak_bytes": 2**35, "losses": [12.0]}
    ours = {"version": "tilesmith", "milliseconds": 100.0, "peak_bytes": 2**34, "losses": [12.0]}
    store_model(project, "new.json", model="llama-1b", commit="0" * 40, rows=[row, ours])
    liger = {**row, "version": "liger", "milliseconds": 150.0}
    stale = {**ours, "milliseconds": 123.0}
    store_model(project, "old.json", model="llama-1b", commit="0" * 40, date="2026-11-01", rows=[liger, stale])
    store_survey(project, "drawn.json", "2026-11-16", "silu", (4.0, 1.0, 2.0), (1.0, 1.25, 1.25))
    assert main(["--root", str(project)]) == 0
    chart = (project / "docs/images/headline.svg").read_text()
    assert "200 ms, 32.0 GiB" in chart
    assert "100 ms, 16.0 GiB" in chart
    assert "150 ms" in chart, "a version that the newest run did not measure comes from an older one"
    assert "123 ms" not in chart
    assert 'class="ours" x="150" y="112" width="100.0"' in chart, "half the time, half the bar"
    drawn = chart.count('class="win"') + chart.count('class="loss"')
    assert "2 calls of random sizes, auto beside PyTorch" in chart
    assert "more than 3 % faster in 1, more than 3 % slower in 1" in chart
    assert f"{drawn - 2} benchmark cases, each beside its fastest rival" in chart
    assert main(["--check", "--root", str(project)]) == 0
    (project / "docs/images/headline.svg").write_text(chart.replace("100 ms", "90 ms"))
    assert main(["--check", "--root", str(project)]) == 1


def test_survey_table_takes_the_newest_survey_of_each_operator(project: Path) -> None:
    (project / "README.md").write_text(PAGE.replace("rms_norm", "survey"))
    assert "_Not measured yet._" in renewed(project)
    store_survey(project, "old.json", "2026-11-15", "silu", (9.0, 1.0, 1.0))
    store_survey(project, "new.json", "2026-11-16", "silu", (4.0, 1.0, 2.0), (1.0, 1.25, 1.25), (1.0, 1.02, 1.25))
    store_survey(project, "other.json", "2026-11-14", "softmax", (2.0, 2.0, 4.0))
    text = renewed(project)
    assert "| silu | forward | 3 | 1.46 × | 0.800 × | 2 of 3 | 1.09 × | 80% |\n" in text
    assert "| softmax | forward | 1 | 1.00 × | 1.00 × | 1 of 1 | 0.500 × | 25% |\n" in text
    assert "`benchmarks/surveys/new.json`, `benchmarks/surveys/other.json`" in text
    chart = (project / "docs/images/survey.svg").read_text()
    assert "3 calls, 2 even or ahead, worst 0.800 ×" in chart
    assert chart.count('class="win"') == 2, "4.0 and, for softmax, 1.0"
    assert chart.count('class="loss"') == 2
