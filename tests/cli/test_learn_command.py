"""`tilesmith learn` from the command line."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilesmith.cli.learn import learn
from tilesmith.lab.schemas import schema
from tilesmith.workshop.course.catalogue import BUILT_IN

SOLUTION = (BUILT_IN / "vector-add" / "solution.py").read_text()
FORKED = pytest.mark.usefixtures("forked")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(here: Path) -> Path:
    """Start the exercise vector-add and return its file."""
    assert run("start", "vector-add").exit_code == 0
    return here / "tilesmith-workshop" / "vector-add" / "vector_add.py"


def run(*arguments: object, input: str | None = None) -> Any:
    return CliRunner().invoke(learn, [*map(str, arguments)], input=input)


def test_list_shows_the_course_and_the_next_command(here: Path) -> None:
    result = run("list", "--json", "list.json")
    assert result.exit_code == 0, result.output
    assert "after vector-add" in result.output
    assert "next: tilesmith learn start vector-add" in result.output
    assert "\x1b" not in result.output
    rows = json.loads((here / "list.json").read_text())
    assert rows[0] == {
        "id": "vector-add", "title": "Add two vectors", "track": "beginner", "needs": [], "state": "open",
    }  # fmt: skip


@FORKED
def test_exercise_from_start_to_solved(file: Path, here: Path) -> None:
    result = run("check", "--json", "verdict.json")
    assert result.exit_code == 1
    assert "✗ parses" in result.output
    assert "vector_add.py:11 is a gap to fill" in result.output
    verdict = json.loads((here / "verdict.json").read_text())
    pytest.importorskip("jsonschema").validate(verdict, schema("learn-check"))
    assert (verdict["id"], verdict["passed"], verdict["stage"]) == ("vector-add", False, "parses")

    refused = run("solution")
    assert refused.exit_code == 2
    assert "try vector-add first" in refused.output

    file.write_text(SOLUTION)
    result = run("check", "vector-add", "--json", "verdict.json")
    assert result.exit_code == 0, result.output
    assert "✓ parses  ✓ compiles  ✓ runs  ✓ right  ✓ goals" in result.output
    verdict = json.loads((here / "verdict.json").read_text())
    assert verdict["goals"][0] == {"name": "loads_per_element", "value": 1.0, "wanted": "≤ 1", "met": True}
    assert "tilesmith learn start masks" in run("list").output

    result = run("quiz", "--answer", 3072, "--answer", 1 / 3)
    assert result.exit_code == 1
    assert "counted in your kernel" in result.output
    assert "Yes, 3072" in result.output
    assert "An element has four bytes" in result.output

    assert run("export", "report", "--learner", "Ada").exit_code == 0
    report = json.loads((here / "report.json").read_text())
    assert (report["learner"], report["solved"]) == ("Ada", 1)
    assert report["exercises"][0]["source"] == SOLUTION
    readable = (here / "report.md").read_text()
    assert "# Ada: 1 of" in readable
    assert "| vector-add | solved | 2 | parses | 0 of 4 | 1 of 2 right |" in readable


@FORKED
def test_show_draws_the_learners_kernel_and_marks_the_failing_line(file: Path, here: Path) -> None:
    result = run("show")
    assert result.exit_code == 2
    assert "no kernel of vector_add.py ran" in result.stderr
    file.write_text(SOLUTION.replace("tl.load(y_ptr + offsets)", "tl.load(y_ptr + 2 * offsets)"))
    result = run("show", "--html", "mine.html")
    assert result.exit_code == 0, result.output
    assert "✗ runs" in result.output
    page = (here / "mine.html").read_text()
    assert "out of bounds" in page
    assert 'tr[id$="-line-12"] { background' in page
    file.write_text(SOLUTION.replace("tl.store(", "y = tl.load(y_ptr + offsets)\n    tl.store("))
    result = run("show")
    page = (file.with_name("picture.html")).read_text()
    assert "loads_per_element" in page
    assert '<td class="number bad">2</td><td>missed</td>' in page
    assert run("show", "cuda-silu").exit_code == 2


@FORKED
def test_quiz_shows_the_answer_after_three_guesses(file: Path) -> None:
    result = run("quiz", input="1\n2048\n5\n0.0833\n")
    assert result.exit_code == 0, result.output
    assert "counted in the model solution" in result.output
    assert "The answer is larger." in result.output
    assert "This is what it loads" in result.output
    assert "3072. A block of x" in result.output
    assert "memory-bound" in result.output


def test_learn_without_a_command_lists_the_commands(here: Path) -> None:
    result = run()
    assert result.exit_code == 2
    assert "verify" in result.output


def test_html_option_writes_the_site(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BUILT_IN / "vector-add", here / "course" / "vector-add")
    monkeypatch.setattr("tilesmith.workshop.course.catalogue.BUILT_IN", here / "course")
    result = run("--html", "site")
    assert result.exit_code == 0, result.output
    assert "wrote 1 exercises to site/index.html" in result.output
    assert (here / "site" / "vector-add.html").is_file()


def test_hint_shows_one_more_each_time(file: Path) -> None:
    first, second = run("hint").output, run("hint").output
    assert "1. " in first
    assert "2. " not in first
    assert "2. " in second
    for _ in range(3):
        last = run("hint").output
    assert "That was the last hint" in last


def test_give_up_shows_the_solution(file: Path) -> None:
    result = run("solution", "--give-up")
    assert result.exit_code == 0
    assert result.output.strip() == SOLUTION.strip()


@FORKED
def test_reset_restores_the_starter(file: Path) -> None:
    file.write_text("my work")
    result = run("reset")
    assert "vector_add.before-reset-1.py" in result.output
    assert file.with_name("vector_add.before-reset-1.py").read_text() == "my work"
    assert "..." in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "@"), "no exercise is called '@'; `tilesmith learn list` shows them"),
        (("check", "vector_add.py"), "'vector_add.py'; did you mean vector-add?"),
        (("quiz", "Transpose"), "did you mean transpose-"),
        (("check",), "begin with `tilesmith learn start vector-add`"),
        (("check", "masks"), "`tilesmith learn start masks` creates it"),
        (("list", "--exercises", "nowhere"), "this folder of exercises does not exist"),
    ],
)
def test_wrong_usage_is_one_line(here: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["start", "check", "show", "hint", "quiz", "solution", "reset", "watch", "verify"])
def test_misspelt_exercise_gets_a_suggestion(here: Path, command: str) -> None:
    result = run(command, "vector-ad")
    assert result.exit_code == 2
    assert "no exercise is called 'vector-ad'; did you mean vector-add?" in result.output


def test_damaged_progress_is_a_note(file: Path) -> None:
    (file.parents[1] / "progress.json").write_text("{")
    result = run("hint", "vector-add")
    assert result.exit_code == 0
    assert "note: tilesmith-workshop/progress.json is damaged" in result.output
    assert "damaged" not in run("hint").output


@pytest.fixture
def unsaved(file: Path) -> Path:
    """Return the file of vector-add in a workshop that cannot save progress: also root cannot write this lock."""
    lock = file.parents[1] / "progress.json.lock"
    lock.unlink()
    lock.mkdir()
    return file


@FORKED
@pytest.mark.parametrize(
    ("source", "status", "said"),
    [(SOLUTION, 0, "solved. Next, the questions"), (SOLUTION.replace("x + y", "x - y"), 1, "✗ right")],
)
def test_check_shows_its_result_where_progress_cannot_be_saved(
    unsaved: Path, source: str, status: int, said: str
) -> None:
    unsaved.write_text(source)
    result = run("check", "vector-add", "--json", "verdict.json")
    assert result.exit_code == status, result.output
    assert said in result.output
    assert json.loads(Path("verdict.json").read_text())["passed"] == (status == 0)
    (line,) = [one for one in result.output.splitlines() if "cannot be saved" in one]
    assert line.startswith("note: your progress cannot be saved: tilesmith-workshop/progress.json.lock: Is a directory")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("hint",), "1. "), (("start",), "your work, unchanged"), (("solution", "--give-up"), "def add")],
)
def test_command_goes_on_where_progress_cannot_be_saved(unsaved: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(arguments[0], "vector-add", *arguments[1:])
    assert result.exit_code == 0, result.output
    assert said in result.output
    assert result.output.count("cannot be saved") == 1


class InThisThread(ThreadPoolExecutor):
    """Calls at once, in the thread that asks: only the main thread starts a process as a fork."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **named))
        return done


@FORKED
def test_verify_checks_a_private_set(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.workshop.publishing.verify.ThreadPoolExecutor", InThisThread)
    mine = here / "mine" / "my-add"
    shutil.copytree(BUILT_IN / "vector-add", mine)
    first_two = (mine / "wrong.toml").read_text().split("\n\n")[:2]
    (mine / "wrong.toml").write_text("\n\n".join(first_two))
    text = (mine / "exercise.toml").read_text()
    (mine / "exercise.toml").write_text(text.replace('id = "vector-add"', 'id = "my-add"'))
    result = run("verify", "--exercises", "mine", "--json", "verified.json", "my-add")
    assert result.exit_code == 0, result.output
    verified = json.loads((here / "verified.json").read_text())
    pytest.importorskip("jsonschema").validate(verified, schema("learn-verify"))
    assert verified == [{"id": "my-add", "programs": 4, "problems": []}]
    assert "my-add: 4 programs as expected" in result.output
    (mine / "solution.py").write_text((mine / "starter.py").read_text())
    result = run("verify", "--exercises", "mine", "my-add")
    assert result.exit_code == 1
    assert "solution.py must pass, but fails at parses" in result.output


@FORKED
def test_watch_checks_on_save_and_obeys_keys(file: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from tilesmith.cli.learn import learn; learn()", "watch"],
        stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        terminal.wait_for("is a gap to fill")
        terminal.wait_for("n next · h hint · l list · q quit")
        os.write(ours, b"h")
        terminal.wait_for("Program number p takes")
        file.write_text(SOLUTION)
        terminal.wait_for("solved. Next")
        os.write(ours, b"n")
        terminal.wait_for("masks: Sizes that no block divides")
        terminal.wait_for("n next · h hint · l list · q quit")
        os.write(ours, b"q")
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


class Terminal:
    """Reads a terminal until a text appears."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 200
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            if not select.select([self._descriptor], [], [], 1)[0]:
                continue
            self._seen += os.read(self._descriptor, 4096).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]


@FORKED
def test_verify_mutants_lists_survivors_and_writes_json(here: Path) -> None:
    result = run("verify", "--mutants", "--every", 9, "--jobs", 1, "--json", "mutants.json", "vector-add")
    assert result.exit_code == 0, result.output
    assert "exercises: 1, mutants: 2, failed their check: 2, equivalent: 0, survived: 0" in result.output
    rows = json.loads((here / "mutants.json").read_text())
    pytest.importorskip("jsonschema").validate(rows, schema("learn-verify"))
    (row,) = rows
    assert (row["id"], row["mutants"], row["survived"]) == ("vector-add", 2, 0)


def test_commands_inside_the_workshop_find_it_and_never_nest_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert run("start", "masks").exit_code == 0
    assert (file.parents[1] / "masks" / "masks.py").is_file()
    assert not (file.parent / "tilesmith-workshop").exists()
    result = run("hint")  # of the exercise whose folder this is, although masks was started last
    assert "1. " in result.output
    assert json.loads((file.parents[1] / "progress.json").read_text())["current"] == "vector-add"
    monkeypatch.chdir(file.parents[1])
    assert run("start", "strides").exit_code == 0
    assert (file.parents[1] / "strides" / "strides.py").is_file()


def test_long_path_of_a_started_exercise_is_not_cut(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = here / "a-folder-with-a-long-name" / "and-another-one-below-that-is-longer-still"
    deep.mkdir(parents=True)
    output = run("start", "vector-add", "--folder", deep / "tilesmith-workshop").output
    assert "…" not in output
    assert "vector_add.py" in "".join(output.split())


def test_start_warns_of_unmet_needs(here: Path) -> None:
    result = run("start", "masks")
    assert result.exit_code == 0
    assert "note: masks builds on vector-add, which you have not solved yet" in result.output
    assert "note:" not in run("start", "vector-add").output


def test_start_does_not_hand_out_the_answer_of_an_unsolved_exercise(here: Path) -> None:
    result = run("start", "transpose-1")
    assert result.exit_code == 2
    assert "transpose-1 begins with the answer to transpose-0, which you have not solved" in result.output
    assert not (here / "tilesmith-workshop" / "transpose-1").exists()
    assert run("start", "transpose-1", "--anyway").exit_code == 0


def test_next_exercise_follows_the_track(here: Path) -> None:
    assert run("start", "transpose-0").exit_code == 0
    notes = json.loads((here / "tilesmith-workshop" / "progress.json").read_text())
    solved = {"state": "solved"}
    notes["exercises"] = dict.fromkeys(("vector-add", "masks", "block-size", "two-dimensional-tiles"), solved)
    notes["exercises"] |= {"strides": solved, "transpose-0": solved}
    (here / "tilesmith-workshop" / "progress.json").write_text(json.dumps(notes))
    assert "next: tilesmith learn start transpose-1" in run("list").output


def test_quiz_answers_that_are_no_numbers_get_a_sentence(file: Path) -> None:
    result = run("quiz", "--answer", "abc")
    assert result.exit_code == 2
    assert "'abc' is not a number; write one, such as 1024" in result.output


def test_exported_report_does_not_count_quizzes_never_opened(file: Path) -> None:
    assert run("export", "report").exit_code == 0
    assert "| not opened |" in Path("report.md").read_text()
