"""A series of candidates: in order, each once, resumable, as a table and a page."""

from __future__ import annotations

import ast
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hostile_pages import hostile, require_harmless
from tilesmith.lab.judge import Candidate, CandidateError, Judge, Options, Task
from tilesmith.lab.judge.candidate import parsed
from tilesmith.lab.judge.output.content import comparison, headline, sections, series_table
from tilesmith.lab.judge.output.page import page
from tilesmith.lab.judge.series import candidates_in, judge_series

ZOO = Path(__file__).parents[2] / "judge" / "zoo"
QUICK = Options(facts=False)


def chosen() -> list[Candidate]:
    plain = Candidate.of(ZOO / "honest" / "softmax" / "plain.py")
    torch_softmax = Candidate.of(ZOO / "cheats" / "softmax" / "torch_softmax.py")
    return [plain, torch_softmax, Candidate("twin", plain.files, plain.main)]


@pytest.fixture(scope="module")
def verdicts(warm_judge: Judge, softmax: Task) -> list[dict[str, object]]:
    return judge_series(softmax, chosen(), options=QUICK, judge=warm_judge, jobs=2)


def test_series_keeps_the_order_and_judges_twins_once(warm_judge: Judge, softmax: Task) -> None:
    seen: list[str] = []
    found = judge_series(
        softmax, chosen(), options=QUICK, judge=warm_judge, jobs=2, finished=lambda one: seen.append(one["candidate"])
    )
    assert [one["candidate"] for one in found] == ["plain", "torch_softmax", "twin"]
    assert [one["outcome"] for one in found] == ["pass", "fail", "pass"]
    assert len(seen) == 2


@pytest.mark.parametrize("content", ["hello", '{"name": "a setting"}\n', "[1, 2]\n", "3\n", '{"half a li'])
def test_series_refuses_a_file_of_something_else(softmax: Task, tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    with pytest.raises(CandidateError, match=r"line 1 is no verdict"):
        judge_series(softmax, chosen(), results=file)
    assert file.read_text() == content
    with pytest.raises(CandidateError, match="is a folder"):
        judge_series(softmax, chosen(), results=tmp_path)


def test_series_goes_on_where_it_was_killed(warm_judge: Judge, softmax: Task, tmp_path: Path) -> None:
    results = tmp_path / "verdicts.jsonl"
    first = judge_series(softmax, chosen()[:1], options=QUICK, judge=warm_judge, results=results)
    with results.open("a") as file:
        file.write('{"schema": "tilesm')  # the run was killed while it wrote
    seen: list[str] = []
    again = judge_series(
        softmax, chosen(), options=QUICK, judge=warm_judge, results=results,
        finished=lambda one: seen.append(one["candidate"]),
    )  # fmt: skip
    assert seen == ["torch_softmax"]
    assert again[0] == first[0]
    whole = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
    assert [one["candidate"] for one in whole] == ["plain", "torch_softmax"]


def test_table_has_the_best_first(verdicts: list[dict[str, object]]) -> None:
    table = series_table(verdicts)
    assert [row[0].text for row in table.rows][-1] == "torch_softmax"
    assert table.rows[-1][1].tone == "bad"


def test_two_candidates_stand_side_by_side(verdicts: list[dict[str, object]]) -> None:
    first, *rest = comparison(verdicts[0], verdicts[1])
    assert first.title == "Side by side"
    assert rest[0].title.startswith("Reasons: torch_softmax")


def test_page_is_self_contained_and_names_the_reason(verdicts: list[dict[str, object]]) -> None:
    for some in (verdicts[:1], verdicts[:2], verdicts, verdicts[1:2]):
        text = page(some)
        assert text.startswith("<!doctype html>")
        assert "http://" not in text
        assert "src=" not in text
    assert "PyTorch computes aten::_softmax" in page(verdicts[1:2])
    assert "torch-computes" in headline(verdicts[1]) or "PyTorch computes" in headline(verdicts[1])
    assert sections(verdicts[1])[0].title == "Reasons"


def test_candidates_of_a_folder_are_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "solution.py").write_text("x = 1")
    (tmp_path / "notes.txt").write_text("no candidate")
    assert [path.name for path in candidates_in(tmp_path)] == ["a.py", "b"]
    with pytest.raises(CandidateError, match="no such folder"):
        candidates_in(tmp_path / "missing")


def test_seed_is_drawn_for_a_series_and_kept_when_it_goes_on(warm_judge: Judge, softmax: Task, tmp_path: Path) -> None:
    """A seed that everybody knows would let a candidate compute the inputs it never saw."""
    candidates = [Candidate.of_text(f"def broken{number}(x:") for number in range(2)]
    lines = tmp_path / "verdicts.jsonl"
    first = judge_series(softmax, candidates[:1], judge=warm_judge, results=lines)
    second = judge_series(softmax, candidates, judge=warm_judge, results=lines)
    other = judge_series(softmax, candidates[:1], judge=warm_judge)
    assert first[0]["seed"] == second[0]["seed"] == second[1]["seed"]
    assert other[0]["seed"] != first[0]["seed"]


def test_one_unreadable_candidate_does_not_stop_a_series(warm_judge: Judge, softmax: Task, tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    folder = tmp_path / "each"
    (folder / "linked").mkdir(parents=True)
    (folder / "linked" / "candidate.py").write_text("def softmax(x):\n    return x\n")
    (folder / "linked" / "data.txt").symlink_to(outside)
    (folder / "names\udcff.py").write_text("def softmax(x):\n    raise ValueError('\\ud800\\x1b[2J')\n")
    candidates = [Candidate.of_each(one, Candidate.of) for one in candidates_in(folder)]
    linked, named = judge_series(softmax, candidates, options=QUICK, judge=warm_judge)
    assert linked["reasons"][0]["kind"] == "unreadable"
    assert "link to a file outside" in linked["reasons"][0]["message"]
    assert named["candidate"] == "names\ufffd"
    assert all(one.isprintable() for one in named["reasons"][0]["message"])
    json.dumps([linked, named], ensure_ascii=False).encode()


def test_single_candidate_with_a_link_to_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "candidate.py").symlink_to(__file__)
    with pytest.raises(CandidateError, match="outside of the folder"):
        Candidate.of(tmp_path / "folder")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_no_text_of_a_verdict_runs_in_a_browser(verdicts: list[dict[str, object]], tmp_path: Path) -> None:
    pages = {}
    for number in (1, 2, 3):
        pages[f"judge{number}"], keys = hostile(page, verdicts[-number:])
        assert {"candidate", "task"} <= keys
    require_harmless(pages, tmp_path)


def test_threads_parse_one_file_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 raises SystemError where trees of two threads are made at once."""
    inside, together, parse = [0], [0], ast.parse

    def slow(text: str) -> ast.Module:
        inside[0] += 1
        together[0] = max(together[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return parse(text)

    monkeypatch.setattr(ast, "parse", slow)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(parsed, ["x = 1"] * 8))) == 8
    assert together[0] == 1
