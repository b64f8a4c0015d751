"""The course as a static site, and the exercises in a notebook."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hostile_pages import EVIL, require_harmless
from tilesmith.workshop import notebook
from tilesmith.workshop.checking.staged_check import StageFailure
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import ExerciseError
from tilesmith.workshop.publishing import site


@pytest.fixture
def small_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    for name in ("vector-add", "masks"):
        shutil.copytree(BUILT_IN / name, tmp_path / "course" / name)
    monkeypatch.setattr("tilesmith.workshop.course.catalogue.BUILT_IN", tmp_path / "course")
    return Catalogue()


def test_every_exercise_page_has_hints_answers_and_picture(small_course: Catalogue, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    assert site.write_site(small_course, tmp_path / "site", lambda *step: steps.append(step)) == 2
    assert steps == [("vector-add", 1, 2), ("masks", 2, 2)]
    index = (tmp_path / "site" / "index.html").read_text()
    assert re.findall(r'href="(\S+\.html)"', index) == ["vector-add.html", "masks.html"]
    page = (tmp_path / "site" / "vector-add.html").read_text()
    assert "<title>Add two vectors</title>" in page
    assert "<code>tl.program_id(0)</code>" in page  # the page's Markdown
    assert '<span class="n">offsets</span>' in page  # the starter, highlighted
    assert page.count("<details>") == 4 + 2  # hints and answers
    assert "3072. A block of x" in page  # counted while the page was generated
    assert 'rel="next" href="masks.html"' in page
    assert 'rel="prev" href="vector-add.html"' in (tmp_path / "site" / "masks.html").read_text()
    picture = (tmp_path / "site" / "vector-add-picture.html").read_text()
    assert "add_kernel" in picture
    assert str(tmp_path) not in picture


def test_html_in_a_page_is_escaped(small_course: Catalogue, tmp_path: Path) -> None:
    page = small_course["masks"].page
    page.write_text(page.read_text() + "\n<script>alert(1)</script>\n")
    site.write_site(small_course, tmp_path / "site")
    assert "<script>alert" not in (tmp_path / "site" / "masks.html").read_text()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_no_text_of_an_exercise_runs_in_a_browser(small_course: Catalogue, tmp_path: Path) -> None:
    folder = small_course["masks"].page.parent
    facts = (folder / "exercise.toml").read_text()
    facts = facts.replace('title = "Sizes', f"title = '''{EVIL} Sizes").replace('divides"', "divides'''", 1)
    facts = facts.replace("hints = [", f"hints = [\n    '''{EVIL} ''',", 1)
    (folder / "exercise.toml").write_text(facts)
    for name in ("page.md", "starter.py"):
        (folder / name).write_text((folder / name).read_text() + f"\n# {EVIL}\n\n{EVIL if name == 'page.md' else ''}\n")
    site.write_site(Catalogue(), tmp_path / "site")
    pages = {name: (tmp_path / "site" / f"{name}.html").read_text() for name in ("index", "masks", "vector-add")}
    assert EVIL not in "".join(pages.values())
    require_harmless(pages, tmp_path)


class Shell:
    """The part of IPython's shell that an extension uses."""

    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], Any] = {}

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[kind, name] = function


@pytest.mark.usefixtures("forked")
def test_check_magic_checks_a_cell_and_saves_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell()
    notebook.load_ipython_extension(shell)
    check = shell.magics["cell", "check"]
    check("vector-add", "def vector_add(x, y):\n    return ...\n")
    assert "✗ parses" in capsys.readouterr().out
    check("vector-add", (BUILT_IN / "vector-add" / "solution.py").read_text())
    assert "✓ parses  ✓ compiles  ✓ runs  ✓ right  ✓ goals" in capsys.readouterr().out
    assert '"state": "solved"' in (tmp_path / "tilesmith-workshop" / "progress.json").read_text()
    check("nothing", "")
    assert "no exercise is called 'nothing'" in capsys.readouterr().out


def test_failing_model_solution_ends_the_site_in_one_sentence(
    small_course: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(check: TritonCheck) -> None:
        raise StageFailure("runs", "The program took too long.\nIts second line.")

    monkeypatch.setattr(TritonCheck, "measured", fail)
    with pytest.raises(ExerciseError) as caught:
        site.write_site(small_course, tmp_path / "site")
    assert str(caught.value) == "vector-add: the model solution fails at the stage runs: The program took too long."


def test_failure_of_a_stage_passes_between_processes() -> None:
    copied = pickle.loads(pickle.dumps(StageFailure("compiles", "Your file does not compile")))
    assert (copied.stage, str(copied)) == ("compiles", "Your file does not compile")
