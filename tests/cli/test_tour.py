import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from typer.testing import CliRunner

from forked import forking
from tilesmith.cli.tour import tour
from tilesmith.cli.tour_chapters import contents as chapters
from tilesmith.cli.tour_chapters import hugging_face
from tilesmith.cli.tour_chapters import inspection as inspected_chapter
from tilesmith.cli.tour_chapters import training as trained_chapter
from tilesmith.cli.tour_chapters.chapter import Chapter, Told
from tilesmith.lab import check
from tilesmith.lab.bench.output.contests import duration_with_spread
from tilesmith.lab.bench.result import Row, result
from tilesmith.lab.report.content import Headline, Table, Tone
from tilesmith.lab.report.number_format import duration
from tilesmith.lab.schemas import schema
from tilesmith.spec import Spec, load_file

app = typer.Typer()
app.command()(tour)
runner = CliRunner()


class Toured(NamedTuple):
    exit_code: int
    output: str
    page: str
    found: dict[str, Any]


# The loss falls by as much as is asked for in the first of the tour's steps.
TRAINED = replace(trained_chapter.SETTINGS, num_steps=20)


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    folder = tmp_path_factory.mktemp("tour")
    with forking(), pytest.MonkeyPatch.context() as changed:
        changed.setattr(trained_chapter, "SETTINGS", TRAINED)
        result = runner.invoke(app, ["--html", str(folder / "tour.html"), "--json", str(folder / "tour.json")])
    page = (folder / "tour.html").read_text(encoding="utf-8")
    return Toured(result.exit_code, result.output, page, json.loads((folder / "tour.json").read_text()))


def test_findings_follow_their_schema(toured: Toured) -> None:
    pytest.importorskip("jsonschema").validate(toured.found, schema("tour"))


def test_tour_exits_with_zero_and_names_the_page(toured: Toured) -> None:
    assert toured.exit_code == 0
    assert re.search(r"The tour as a page: .*tour\.html$", toured.output.rstrip())


def test_piped_output_has_no_control_characters(toured: Toured) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", toured.output)


def test_operators_are_right_including_gradients(toured: Toured) -> None:
    results = toured.found["check"]["results"]
    assert {result["op"] for result in results} == {"rms_norm", "silu"}
    assert {"forward", "gradient x", "gradient weight"} == {result["what"] for result in results}
    assert all(result["passed"] for result in results)


def test_broken_kernel_is_caught_by_the_size_that_shows_it(toured: Toured) -> None:
    broken = toured.found["broken"]
    assert broken["caught"]
    verdicts = {result["case"]: result["passed"] for result in broken["results"]}
    assert verdicts == {"power-of-two": True, "odd": False}
    for text in (toured.output, toured.page):
        assert re.search(r"broken_rms_norm\.py:\d+", text)
        assert "but must be" in text


def test_compiles_for_both_vendors(toured: Toured) -> None:
    targets = toured.found["compiled"]["targets"]
    assert set(targets) == {"cuda:90", "hip:gfx942"}
    for facts in targets.values():
        assert 0 < facts["registers"] <= 512
        assert 0 < facts["occupancy"] <= 1
        assert {access["kind"] for access in facts["accesses"]} == {"load", "store"}


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_every_access_is_as_wide_as_the_hardware_allows(toured: Toured, target: str) -> None:
    narrow = [
        access for access in toured.found["compiled"]["targets"][target]["accesses"] if access["vector_bytes"] < 16
    ]
    assert narrow == []


def test_bench_is_measured_with_a_gpu_and_predicted_without(toured: Toured) -> None:
    rows = [row for one in toured.found["bench"] for row in one["rows"]]
    assert {row["kind"] for row in rows} == {"measured" if torch.cuda.is_available() else "predicted"}
    assert {row["mode"] for row in rows} == {"fwd", "bwd"}
    assert all(row["error"] is None for row in rows)
    for row in rows:
        figure = duration_with_spread(row) if torch.cuda.is_available() else duration(row["floor_ms"])
        assert figure in toured.page


def test_predicted_floors_are_bytes_over_the_datasheet_bandwidth() -> None:
    tensor, weight = 2 * 16384 * 4096, 2 * 4096
    bytes_moved = {"fwd": 2 * tensor + weight, "bwd": 3 * tensor + 2 * weight}
    told = chapters._predicted()
    for prediction, tb_per_s in zip(told.findings["bench"], (4.8, 3.35, 5.3), strict=True):
        floors = {row["mode"]: row["floor_ms"] for row in prediction["rows"]}
        assert floors == pytest.approx({mode: moved / (tb_per_s * 1e9) for mode, moved in bytes_moved.items()})
    table = told.blocks[0]
    assert isinstance(table, Table)
    assert "predicted, not measured" in table.caption
    assert {headline.origin for headline in told.headlines} == {table.origin} == {"predicted"}
    assert [cell.text for cell in table.rows[0]] == ["H200", "55.9 µs", "83.9 µs", "4.80"]


def timed(provider: str, milliseconds: float | None, **known: Any) -> Row:
    sizes = {"rows": 16384, "cols": 4096}
    return Row("rms_norm", "large", sizes, "bfloat16", "fwd", provider, device_ms=milliseconds, noise=0.01, **known)


def measured(*rows: Row, partial: bool = False) -> Told:
    return chapters._measured_told(result(rows, about={"device": "Test GPU"}, limits=None, partial=partial))


@pytest.mark.parametrize(("torch_ms", "tone"), [(0.126, "good"), (0.0631, "plain"), (0.05, "bad")])
def test_measured_times_stand_beside_pytorch_and_a_loss_is_shown(torch_ms: float, tone: Tone) -> None:
    told = measured(timed("tilesmith", 0.063), timed("torch", torch_ms))
    assert told.passed
    assert told.headlines == [
        Headline("63.0 µs", f"rms_norm forward on Test GPU; torch takes {duration(torch_ms)}", tone, "measured")
    ]
    table = told.blocks[0]
    assert isinstance(table, Table)
    assert {row[0].text: row[1].text for row in table.rows} == {"tilesmith": "63.0 µs", "torch": duration(torch_ms)}


def test_operator_that_gets_no_time_fails_the_tour() -> None:
    told = measured(
        timed("tilesmith", None, error="refused, because the result is wrong: forward"), timed("torch", 0.1)
    )
    assert not told.passed
    assert told.headlines[0].figure == "no time"


def test_interrupted_measurement_fails_the_tour() -> None:
    assert not measured(timed("tilesmith", 0.063), partial=True).passed


def test_page_holds_the_figures_of_the_run(toured: Toured) -> None:
    for facts in toured.found["compiled"]["targets"].values():
        assert f">{facts['registers']}<" in toured.page
    assert f"{len(toured.found['check']['results'])} right" in toured.page
    assert toured.found["machine"]["torch"] in toured.page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", toured.page)  # the name of a format, not a place


def test_suggested_commands_exist(toured: Toured) -> None:
    from tilesmith.cli import app as tilesmith

    names = {command.name or command.callback.__name__ for command in tilesmith.registered_commands if command.callback}
    names |= {str(group.typer_instance.info.name) for group in tilesmith.registered_groups if group.typer_instance}
    offered = set(re.findall(r"^tilesmith (\w+) ", toured.output, re.MULTILINE))
    assert offered == {"check", "bench", "ops", "doctor", "inspect", "train", "learn"}
    assert offered <= names


def test_inspect_tells_the_slow_kernel_from_its_twin(toured: Toured) -> None:
    slow, mended = toured.found["inspect"]["walk_down_kernel"], toured.found["inspect"]["walk_along_kernel"]
    assert (slow["sectors_per_request"], slow["efficiency"]) == (32.0, 0.125)
    assert mended["efficiency"] == 1.0
    assert mended["sectors_per_request"] == mended["ideal_sectors_per_request"]
    assert "uncoalesced" in slow["findings"]
    assert "uncoalesced" not in mended["findings"]
    assert re.search(r"column_walk\.py:\d+", toured.output)
    assert "<iframe" in toured.page
    assert "walk_down_kernel" in toured.page


@pytest.mark.usefixtures("forked")
def test_inspect_that_sees_no_difference_fails_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspected_chapter, "SLOW", "walk_along_kernel")
    monkeypatch.setattr(inspected_chapter, "MENDED", "walk_down_kernel")
    assert not inspected_chapter._inspected(lambda doing: None).passed


def test_a_tiny_model_learns_and_its_curve_is_on_the_page(toured: Toured) -> None:
    train = toured.found["train"]
    assert len(train["losses"]) == TRAINED.num_steps
    assert train["losses"][0] > 6.5
    assert train["best_loss"] < train["losses"][-1] < train["losses"][0] - 1
    assert f"best possible {train['best_loss']:.3f}" in toured.page


def test_page_opens_with_lanes_and_sectors_before_and_after(toured: Toured) -> None:
    opening, _, rest = toured.page.partition('<dl class="headlines">')
    assert opening.count('class="panel"') == 2
    before, after = opening.split('class="panel"')[1:]
    assert (
        "walk_down_kernel: each lane loads 4 bytes. The warp moves 32 sectors of 32 bytes; 4 would do. 12.5%" in before
    )
    assert "100.0% of the moved bytes are used" in after
    assert (before.count('<rect class="bad"'), after.count('<rect class="bad"')) == (32, 0)
    assert before.count('<rect class="lane"') == after.count('<rect class="lane"') == 32
    facts = toured.found["inspect"]["walk_along_kernel"]
    assert after.count('<rect class="good"') == facts["sectors_per_request"]
    assert rest.partition("</dl>")[0].count("<div") <= 6, "one row of tiles"


def test_predicted_and_measured_tiles_look_different(toured: Toured) -> None:
    wanted = "measured" if torch.cuda.is_available() else "predicted"
    assert f'<div class="{wanted}">' in toured.page
    assert f'<span class="origin">{wanted}</span>' in toured.page


def test_step_time_stands_beside_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trained_chapter, "TIMED_SIZES", {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "seq_len": 8}
    )
    monkeypatch.setattr(trained_chapter, "TIMED_SETTINGS", replace(trained_chapter.TIMED_SETTINGS, num_steps=21))
    told = trained_chapter.beside_pytorch(lambda doing: None)
    plain, ours = told.findings["steps"]
    assert (plain["variant"], ours["variant"]) == ("v1", "v4")
    table, headline = told.blocks[0], told.headlines[0]
    assert isinstance(table, Table)
    assert [row[1].text for row in table.rows] == [duration(plain["step_ms"]), duration(ours["step_ms"])]
    assert headline.origin == table.origin == "measured"
    assert (headline.tone == "good") == (ours["step_ms"] < plain["step_ms"])


def test_step_of_a_whole_llama_stands_beside_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 64}  # fmt: skip
    monkeypatch.setattr(hugging_face, "SIZES", {**hugging_face.SIZES, **small})
    monkeypatch.setattr(hugging_face, "TOKENS", (2, 16))
    monkeypatch.setattr(hugging_face, "STEPS", 2)
    told = hugging_face.llama_beside_transformers(lambda doing: None, "cpu")
    plain, ours = told.findings["steps"]
    assert (plain["variant"], ours["variant"]) == ("transformers", "tilesmith")
    assert plain["loss"] == pytest.approx(ours["loss"], abs=0.02), "the same model and data"
    assert plain["parameters"] == ours["parameters"] > 1000
    table, headline = told.blocks[0], told.headlines[0]
    assert isinstance(table, Table)
    assert [row[1].text for row in table.rows] == [duration(plain["step_ms"]), duration(ours["step_ms"])]
    assert headline.origin == table.origin == "measured"
    assert (headline.tone == "good") == (ours["step_ms"] < plain["step_ms"])


@pytest.mark.parametrize("case", ["no transformers", "little memory", "memory of others"])
def test_tiny_llama_is_timed_where_the_whole_one_cannot(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(report: object) -> Told:
        raise torch.OutOfMemoryError

    installed = None if case == "no transformers" else object()
    free = hugging_face.LEAST_FREE - (case == "little memory")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(hugging_face, "llama_beside_transformers", full)
    monkeypatch.setattr(trained_chapter, "beside_pytorch", lambda report: Told((), {"steps": case}))
    assert trained_chapter._measured(lambda doing: None).findings == {"steps": case}


def test_a_model_that_learns_nothing_fails_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_chapter, "SETTINGS", replace(trained_chapter.SETTINGS, num_steps=3, learning_rate=0.0))
    told = trained_chapter.trained_chapter().tell(lambda doing: None)
    assert not told.passed
    assert told.headlines[0].tone == "bad"


def test_page_that_cannot_be_written_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chapters, "chapters", lambda machine: [])
    result = runner.invoke(app, ["--html", str(tmp_path)])
    assert result.exit_code == 2
    assert [line for line in result.output.splitlines() if "cannot write" in line] == result.output.splitlines()


def test_wrong_operator_is_reported_and_fails_the_tour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = load_file(Path(str(chapters.BROKEN)))
    monkeypatch.setattr(chapters, "SPECS", {"broken": broken})
    monkeypatch.setattr(chapters, "CHECKED", {"broken": ("odd",)})
    only = [Chapter("Is it right?", "", chapters._right)]
    monkeypatch.setattr(chapters, "chapters", lambda machine: only)
    result = runner.invoke(app, ["--html", str(tmp_path / "tour.html")])
    assert result.exit_code == 1
    assert "5 wrong" in (tmp_path / "tour.html").read_text()


def test_undetected_mistake_fails_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_mistake(path: Path) -> Spec:
        spec = load_file(path)
        return replace(spec, op=spec.reference, kernels=False)

    monkeypatch.setattr(chapters, "load_file", without_mistake)
    told = chapters._broken(lambda doing: None)
    assert not told.passed
    assert told.headlines[0].figure == "missed"


def test_broken_kernel_has_one_mistake_only(tmp_path: Path) -> None:
    source = Path(str(chapters.BROKEN)).read_text()
    mended = source.replace("tl.sum(x * x)", "tl.sum(tl.where(columns < n_columns, x * x, 0.0))")
    assert mended != source
    (tmp_path / "mended.py").write_text(mended)
    assert all(result.passed for result in check(load_file(tmp_path / "mended.py"), device="cpu"))


def test_refuses_where_triton_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    result = runner.invoke(app, ["--html", str(tmp_path / "tour.html")])
    assert result.exit_code == 2
    assert "the tour runs Triton kernels. Triton is not installed" in result.output
    assert not (tmp_path / "tour.html").exists()


def test_suggested_commands_use_a_program_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After `make tour` the program is in .venv, which nobody has put on the path yet."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/tilesmith"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chapters._program() == ".venv/bin/tilesmith"
    found = tmp_path / "tilesmith"
    found.touch(mode=0o755)
    assert chapters._program() == "tilesmith"
