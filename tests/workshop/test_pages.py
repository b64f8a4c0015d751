"""The pages: every command in them exists, has the given options, and runs.

The tests replace placeholders of a page: an id, a folder, a script to inspect. The exercises of a command are solved
before it runs. Input ends at once, so `watch` ends too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tilesmith.cli import app
from tilesmith.cli.learn import learn
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import Exercise
from tilesmith.workshop.learner.workshop_folder import Workshop
from tilesmith.workshop.publishing.lesson_html import lesson_html

DOCS = Path(__file__).parents[2] / "docs"
EXERCISES = Catalogue()
EXAMPLE = "vector-add"
# Placeholders in the pages, and their values in these tests.
STAND_INS = {"ID": EXAMPLE, "ID…": EXAMPLE, "DIR": "site", "FILE": "report"}
NAMED_IN_PASSING = {"inspect": ["script.py"], "check": ["add"]}
CHEAP = ("list", "start", "hint", "solution", "reset", "export", "watch")
SECONDS = 900


@dataclass(frozen=True)
class Command:
    """A command of a page. `exercise` is the exercise of the page, or the example."""

    words: tuple[str, ...]
    exercise: str

    def __str__(self) -> str:
        return " ".join(self.words) + (f" ({self.exercise})" if "script.py" in self.words else "")

    @property
    def is_cheap(self) -> bool:
        if self.words[0] != "learn":
            return "script.py" in self.words and self.exercise == EXAMPLE
        return self.words[1] in CHEAP or self.words[1:] in (("check",), ("quiz", EXAMPLE))


def commands_in(page: Path, exercise: str) -> Iterator[Command]:
    for alone, in_sentence in re.findall(
        r"^tilesmith ([^\n]+)$|`tilesmith ([^`\n]+)`", page.read_text(), flags=re.MULTILINE
    ):
        text = (alone or in_sentence).replace("[ID…]", "ID")
        words = [STAND_INS.get(word, word) for word in re.sub(r"\[[^\]]*\]", "", text).split()]
        yield Command((*words, *(NAMED_IN_PASSING.get(words[0], []) if len(words) == 1 else [])), exercise)


def every_command() -> list[Command]:
    pages = [(page, EXAMPLE) for page in sorted(DOCS.glob("workshop*.md"))]
    pages += [(one.page, one.id if one.function else EXAMPLE) for one in EXERCISES.values()]
    found = [command for page, exercise in pages for command in commands_in(page, exercise)]
    unique = {str(command): command for command in found}
    return list(unique.values())


def help_of(words: Sequence[str]) -> str:
    group = learn if words[0] == "learn" else app
    inner = [
        word for word in words[words[0] == "learn" :][: 2 if words[0] == "debug" else 1] if not word.startswith("-")
    ]
    result = CliRunner().invoke(group, [*inner, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("exercise", EXERCISES)
def test_commands_and_options_of_a_page_exist(exercise: str) -> None:
    found = list(commands_in(EXERCISES[exercise].page, exercise))
    assert found, "a page without a command leaves its reader alone"
    for command in found:
        known = help_of(command.words)
        for option in (word for word in command.words if word.startswith("--") and word != "--"):
            assert option in known, f"{command}: no option {option}"


def test_help_fails_for_a_command_that_does_not_exist() -> None:
    for words in (["learn", "fly"], ["fly"]):
        with pytest.raises(AssertionError):
            help_of(words)


def prepare(folder: Path, command: Command) -> None:
    """Create what a reader has at this point: solved exercises, scripts, and a private set."""
    workshop = Workshop(folder / "tilesmith-workshop", EXERCISES)
    named = [EXERCISES[word] for word in command.words if word in EXERCISES]
    for exercise in [EXERCISES[EXAMPLE], EXERCISES[command.exercise], *named]:
        workshop.start(exercise)
        if not exercise.is_only_questions:
            shutil.copy(exercise.solution, workshop.file_of(exercise))
        workshop.note_check(exercise, Verdict(exercise.id, True, "goals", ""), b"")
    (folder / "train.py").write_text("import torch\n\nprint(torch.ones(64, 64).matmul(torch.ones(64, 64)).sum())\n")
    for name in ("script.py", "claim.py", "swiglu.py"):
        write_script(EXERCISES[command.exercise], folder / name)
    mine = folder / "my-course" / "my-exercise"
    shutil.copytree(BUILT_IN / EXAMPLE, mine)
    first_two = (mine / "wrong.toml").read_text().split("\n\n")[:2]
    (mine / "wrong.toml").write_text("\n\n".join(first_two))
    settings = mine / "exercise.toml"
    settings.write_text(settings.read_text().replace(f'id = "{EXAMPLE}"', 'id = "my-exercise"'))


def write_script(exercise: Exercise, script: Path) -> None:
    """Write the model solution with a call at its end."""
    shutil.copy(exercise.folder / "meaning.py", script.with_name("meaning.py"))
    sizes = ", ".join(f"{name}={size}" for name, size in exercise.measured.sizes.items())
    call = (
        "import meaning\nfrom tilesmith import Case\n\n"
        f"{exercise.function}(**meaning.make_inputs(Case('here', {sizes}), torch.{exercise.dtypes[0]}, 'cpu'))\n"
    )
    script.write_text(f"{exercise.solution.read_text()}\n\n{call}")


def run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    python = Path(sys.executable).parent
    return subprocess.run(
        [sys.executable, "-m", "tilesmith", *command.words],
        input="1\n" * 60 if "quiz" in command.words else "",
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=SECONDS,
        env={**os.environ, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"},
    )


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "command",
    [pytest.param(one, id=str(one), marks=[] if one.is_cheap else [pytest.mark.slow]) for one in every_command()],
)
def test_command_of_the_pages_runs(command: Command, tmp_path: Path) -> None:
    prepare(tmp_path, command)
    made = run(command, tmp_path)
    said = made.stdout + made.stderr
    assert "Traceback" not in said, said
    if command.words[0] == "tune" and not torch.cuda.is_available():
        assert made.returncode == 2
        assert "there is none here" in said
        return
    assert made.returncode == 0, said
    if command.words[:2] == ("learn", "check"):
        assert "solved" in said


def test_wrong_command_has_exit_status_2(tmp_path: Path) -> None:
    prepare(tmp_path, Command(("learn", "list"), EXAMPLE))
    assert run(Command(("learn", "start", "nothing"), EXAMPLE), tmp_path).returncode == 2


def test_commands_are_found_on_own_lines_and_in_sentences(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Run `tilesmith learn hint [ID]` or\n\n```\ntilesmith learn start ID\n```\n\n`tilesmith inspect` helps.\n"
    )
    assert [str(one) for one in commands_in(page, "masks")] == [
        "learn hint", f"learn start {EXAMPLE}", "inspect script.py (masks)",
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXERCISES)
def test_page_says_where_to_read_on(name: str) -> None:
    before, _, section = EXERCISES[name].page.read_text().partition("\n## Read on\n")
    links = re.findall(r"\[[^\]]+\]\((https://[^)\s]+)\)", section)
    assert len(links) >= 2
    assert len(set(links)) == len(links)
    assert "](http" not in before


@pytest.mark.parametrize("name", EXERCISES)
def test_exercise_says_how_long_and_how_hard_it_is(name: str) -> None:
    exercise = EXERCISES[name]
    assert exercise.minutes >= 5
    assert exercise.difficulty in (1, 2, 3)


def test_coverage_names_every_exercise() -> None:
    text = (DOCS / "workshop-coverage.md").read_text()
    ends = re.findall(r"`(\w+)-0` to `\w+-(\d)`", text)
    ladders = {f"{name}-{rung}" for name, last in ends for rung in range(int(last) + 1)}
    named = set(re.findall(r"`([a-z0-9-]+)`", text)) | ladders
    assert sorted(set(EXERCISES) - named) == []


def test_code_of_a_lesson_is_a_block_not_text() -> None:
    for exercise in Catalogue().values():
        assert "&lt;pre" not in lesson_html(exercise), exercise.id
    assert '<pre><code class="language-python">' in lesson_html(Catalogue()["masks"])
