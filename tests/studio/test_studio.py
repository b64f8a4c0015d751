"""The studio: who may ask, files, checks, and the whole way of a learner in a browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilesmith.cli import app

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from running_studio import PATIENCE, RunningStudio, running_studio, until  # needs both

from tilesmith.studio.app import number_in
from tilesmith.studio.lessons import course
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.learner.workshop_folder import Workshop

sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "inspect"))

from browser import CHROMIUM, Browser  # a module of other tests

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
CONTROL, SHIFT, ALT = 2, 8, 1
MY_KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


double[(1,)](torch.ones(100), 100, BLOCK=128)
"""


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    folder = tmp_path_factory.mktemp("studio")
    outside = folder / "mine" / "double.py"
    outside.parent.mkdir()
    outside.write_text(MY_KERNEL)
    handed_in = folder / "class"
    handed_in.mkdir()
    (handed_in / "ada.json").write_text(json.dumps(report("Ada", "solved")))
    (handed_in / "bob.json").write_text(json.dumps(report("Bob", "attempted")))
    (handed_in / "notes.json").write_text("{}")
    with running_studio(folder / "workshop", outside, class_folder=handed_in) as running:
        yield running


def report(learner: str, state: str) -> dict[str, object]:
    one = {
        "id": "vector-add", "title": "Add two vectors", "state": state, "checks": 3, "hints": 1, "gave_up": False,
        "failed_stages": ["parses", "right"], "quiz": {"1": 2}, "source": "x = 1\n",
    }  # fmt: skip
    return {"learner": learner, "exercises": [one]}


def test_studio_without_its_packages_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("tilesmith.studio", "starlette", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = CliRunner().invoke(app, ["studio", "--no-browser"])
    assert result.exit_code == 2
    assert "pip install '.[studio]'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_wrong_usage_of_the_command_is_one_line(tmp_path: Path) -> None:
    for arguments in (["missing.py"], ["--class", str(tmp_path / "nothing")]):
        result = CliRunner().invoke(app, ["studio", "--no-browser", *arguments])
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["studio", "--no-browser", "--folder", str(tmp_path), "--port", port])
    assert result.exit_code == 2
    assert result.stderr == f"tilesmith: --port {port}: Address already in use\n"


def test_requests_need_the_token(studio: RunningStudio) -> None:
    for path in ("/", "/wrong/", "/wrong/api/course", "/static/studio.js"):
        assert studio.ask(path).status == 403
    assert studio.ask("api/course").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
    ids=str,
)
def test_requests_of_other_sites_are_refused(studio: RunningStudio, headers: dict[str, str]) -> None:
    assert studio.ask("api/course", **headers).status == 403
    assert studio.ask("api/exercise/vector-add/hint", {}, **headers).status == 403


def test_every_answer_has_a_policy_without_other_sources(studio: RunningStudio) -> None:
    for path in ("", "static/studio.js", "api/course", "picture/vector-add", "/wrong"):
        headers = studio.ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "name", ["../secret.py", "/etc/hosts.py", "a/../../b.py", "link/b.py", "notes.txt", "", "progress.json", "%00.py"]
)
def test_files_outside_the_folder_are_refused(studio: RunningStudio, name: str, tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("secret")
    link = studio.workshop.folder / "link"
    if not link.exists():
        studio.workshop.folder.mkdir(exist_ok=True)
        link.symlink_to(tmp_path)
    answers = [
        studio.ask(f"api/file?name={name}"),
        studio.ask(f"api/file?name={name}", {"text": "x", "version": ""}, "PUT"),
        studio.ask("api/run", {"panel": "inspect", "name": name}),
    ]
    for answer in answers:
        assert answer.status in (400, 404)
        assert answer.json["error"]
    assert (tmp_path / "b.py").read_text() == "secret"


def test_static_files_are_only_those_of_the_page(studio: RunningStudio) -> None:
    assert studio.ask("static/studio.js").status == 200
    for name in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "nothing.js"):
        assert studio.ask(f"static/{name}").status == 404


def test_bad_requests_get_one_sentence(studio: RunningStudio) -> None:
    answers = [
        studio.ask("api/exercise/no-such", {}),
        studio.ask("api/exercise/vector-add/answer", {"question": 9, "guess": "1"}),
        studio.ask("api/exercise/vector-add/answer", {"question": 1, "guess": "abc"}),
        studio.ask("api/exercise/vector-add/file", {"text": 1}, "PUT"),
        studio.ask("api/run", {"panel": "fly", "name": "x.py"}),
        studio.ask("api/file?name=missing.py"),
        studio.ask("api/exercise/vector-add/file", [], "PUT"),
    ]
    for answer in answers:
        assert answer.status in (400, 404)
        assert "\n" not in answer.json["error"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1024", 1024), ("1,024", 1024), ("1 024", 1024), ("1/12", 1 / 12), ("25 %", 0.25), ("1e3", 1000), ("-.5", -0.5)],
)
def test_number_as_people_write_it(text: str, number: float) -> None:
    assert number_in(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "abc", "1,5", "1/0", "nan", "1//2", "0x10"])
def test_text_that_is_no_number_gets_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        number_in(text)


def test_save_of_an_old_version_is_a_conflict(studio: RunningStudio) -> None:
    opened = studio.ask("api/exercise/rope", {}).json
    saved = studio.ask("api/exercise/rope/file", {"text": "one\n", "version": opened["version"]}, "PUT")
    assert saved.status == 200
    studio.file("rope").write_text("from outside\n")
    late = studio.ask("api/exercise/rope/file", {"text": "two\n", "version": saved.json["version"]}, "PUT")
    assert late.status == 409
    assert late.json["text"] == studio.file("rope").read_text() == "from outside\n"
    forced = studio.ask("api/exercise/rope/file", {"text": "two\n", "version": late.json["version"]}, "PUT")
    assert forced.status == 200
    assert studio.file("rope").read_text() == "two\n"


def test_course_goes_on_with_an_unsolved_exercise(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, Catalogue())
    chosen = workshop.catalogue["block-size"]
    workshop.start(chosen)
    assert course(workshop)["current"] == "block-size"
    workshop.note_check(chosen, Verdict(chosen.id, passed=True, stage="goals", message=""), b"solved")
    assert course(workshop)["current"] is None
    assert course(workshop)["next"] == "two-dimensional-tiles"


def test_course_has_needs_times_and_ladders(studio: RunningStudio) -> None:
    course = studio.ask("api/course").json
    every = [one for track in course["tracks"].values() for one in track]
    assert [one["id"] for one in every] == list(studio.workshop.catalogue)
    assert all(one["minutes"] > 0 and one["difficulty"] in (1, 2, 3) for one in every)
    assert [rung["id"] for rung in course["ladders"]["gemm"]] == [f"gemm-{number}" for number in range(5)]
    assert set(course["ladders"]) == {"gemm", "transpose"}


def test_completion_knows_triton(studio: RunningStudio) -> None:
    words = {word["name"]: word for word in studio.ask("api/words").json["python"]}
    assert "mask" in words["tl.load"]["signature"]
    assert "program" in words["tl.program_id"]["text"]
    assert words["triton.cdiv"]["signature"].startswith("triton.cdiv(")
    assert ":code:" not in words["tl.atomic_add"]["text"]


def test_class_shows_reports_and_refuses_other_files(studio: RunningStudio) -> None:
    found = studio.ask("api/class").json
    assert [(one["learner"], one["solved"]) for one in found["learners"]] == [("Ada", 1), ("Bob", 0)]
    assert found["learners"][1]["exercises"]["vector-add"]["failed_stages"] == ["parses", "right"]
    assert [one["file"] for one in found["refused"]] == ["notes.json"]


# In a browser. One browser for all tests: each opens what it needs.


@pytest.fixture(scope="module")
def browser(studio: RunningStudio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser"), server=studio.origin) as browser:
        yield browser


def opened(browser: Browser, studio: RunningStudio, place: str) -> Browser:
    browser.complaints.clear()
    browser.open("about:blank#" + place)
    browser.open(f"{studio.address}#{place}")
    shown(browser, "#view > :not(p)")
    return browser


def shown(browser: Browser, selector: str, words: str = "") -> str:
    """Wait for an element with these words, and return its text. “not saved” is not “saved”."""
    script = (
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)"
        f".find(text => text.replace('not saved', '-').includes({json.dumps(words)}.replace('not saved', '-')))"
    )
    found: list[str] = []

    def look() -> bool:
        text = browser.ask(script)
        found[:] = [] if text is None else [text]
        return text is not None

    until(look, lambda: f"no {selector} with {words!r}; the page says: {browser.ask('document.body.innerText')[:3000]}")
    return found[0]


def opened_long(browser: Browser, studio: RunningStudio, lines: int, columns: int = 1) -> Browser:
    """Open a file with this many lines in free mode."""
    studio.workshop.folder.mkdir(parents=True, exist_ok=True)
    file = studio.workshop.folder / f"long_{lines}.py"
    file.write_text("".join(f"line_{number}{' ' * (columns - 1)}\n" for number in range(lines)))
    page = opened(browser, studio, f"free/{file.name}")
    shown(page, ".told", "saved")
    return page


def reload(browser: Browser) -> None:
    """Load the page again, and wait until the new one is there."""
    browser.ask("window.isOld = true; setTimeout(() => location.reload())")
    until(lambda: not browser.ask("Boolean(window.isOld)") and browser.ask("!!document.querySelector('.told')"))


def select_in_editor(browser: Browser, old: str, last: str = "") -> None:
    """Select a text in the editor, or all from it to the end of another one."""
    browser.ask(
        "(() => { const area = document.querySelector('.editor textarea'); area.focus();"
        f"const start = area.value.indexOf({json.dumps(old)});"
        f"const last = {json.dumps(last or old)};"
        "const end = area.value.indexOf(last, start) + last.length;"
        "if (start < 0) throw new Error('not there'); area.setSelectionRange(start, end); })()"
    )


def write_over(browser: Browser, old: str, new: str) -> None:
    select_in_editor(browser, old)
    browser.type(new)
    browser.press("Escape")  # closes a list of completions


def editor_text(browser: Browser) -> str:
    return str(browser.ask("document.querySelector('.editor textarea').value"))


@in_a_browser
def test_first_exercise_from_start_to_solved(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "map")
    assert "Begin with" in page.text(".start") or "Go on" in page.text(".start")
    page.click('.card[href="#exercise/vector-add"]')
    shown(page, ".lesson h1", "Add two vectors")
    shown(page, ".told", "saved")
    page.click(".save")
    assert "vector_add.py:11" in shown(page, ".message")
    assert page.text(".gutter .error") == "11"
    write_over(page, "offsets = ...", "offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)")
    write_over(page, "x = ...", "x = tl.load(x_ptr + offsets)")
    write_over(page, "y = ...", "y = tl.load(y_ptr + 2 * offsets)")
    assert page.text(".told") == "not saved"
    page.press("s", CONTROL)
    wrong = shown(page, ".message", "out of bounds")
    assert "vector_add.py:14" in wrong
    assert page.text(".gutter .error") == "14"
    picture = studio.ask("picture/vector-add").text
    assert "Failed at the stage" in picture
    assert 'tr[id$="-line-14"]' in picture
    write_over(page, "2 * offsets", "offsets")
    page.press("s", CONTROL)
    shown(page, ".verdict .solved", "Solved")
    assert not page.ask("document.querySelectorAll('.gutter .error').length")
    assert page.ask("[...document.querySelectorAll('.goals td.good')].length") == 2
    assert "tl.program_id(0)" in studio.file("vector-add").read_text()
    assert studio.workshop.progress().of("vector-add").state == "solved"
    assert "Every stage passed" in studio.ask("picture/vector-add").text
    assert page.complaints == []


@in_a_browser
def test_no_text_of_a_file_runs_in_the_browser(studio: RunningStudio, browser: Browser) -> None:
    evil = "<img src=x onerror='window.injected = 1'>"
    page = opened(browser, studio, "exercise/vector-add")
    shown(page, ".told", "saved")
    before = studio.file("vector-add").read_text()
    source = f"def vector_add(x, y):\n    print({evil!r})\n    raise ValueError({evil!r})\n"
    page.ask(
        "(() => { const area = document.querySelector('.editor textarea'); "
        f"area.value = {json.dumps(source)}; area.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
    page.click(".save")
    assert "onerror" in shown(page, ".message", "onerror")
    assert page.ask("window.injected === undefined")
    assert page.ask("document.querySelector('img[src=x]') === null")
    studio.file("vector-add").write_text(before)  # tests share the studio, and a solved quiz counts in this file


@in_a_browser
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("%zz", "Ladder"), ("%", "Ladder"), ("nothing", "Ladder"), ("toString", "Ladder"), ("__proto__", "Ladder"),
        ("exercise/%zz", "No exercise is called “%zz”"), ("exercise/%E4", "No exercise is called “%E4”"),
        ("exercise/none", "No exercise is called “none”"), ("exercise/", "No exercise is called “”"),
        ("exercise/..", "No exercise is called “..”"), ("exercise/masks/x", "No exercise is called “masks/x”"),
        ("free/%zz.py", "%zz.py does not exist"), ("free/%E4", "%E4: the studio opens files that end in"),
    ],
)  # fmt: skip
def test_address_of_nothing_shows_a_page(studio: RunningStudio, browser: Browser, place: str, words: str) -> None:
    browser.open("about:blank#" + place)
    browser.open(f"{studio.address}#{place}")
    shown(browser, "#view", words)


@in_a_browser
def test_quiz_is_answered_in_place(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/vector-add")
    answer = '[data-question="1"] '
    page.click(answer + "input")
    page.type("abc\n")
    shown(page, answer + "output.bad", "is not a number")
    page.ask(f"document.querySelector('{answer}input').value = ''")
    page.click(answer + "input")
    page.type("2048\n")
    shown(page, answer + "output.bad", "This is what it loads")
    page.ask(f"document.querySelector('{answer}input').value = ''")
    page.click(answer + "input")
    page.type("3072")
    page.click(answer + "button")
    shown(page, answer + "output.good", "Yes, 3072")
    assert studio.workshop.progress().of("vector-add").quiz["1"] > 0
    assert ["400" in one for one in page.complaints] == [True]  # the guess that is no number


@in_a_browser
def test_second_exercise_by_keyboard_with_hint_and_completion(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/masks")
    page.press("h", ALT)
    shown(page, ".hints li")
    page.press("2", ALT)
    assert page.ask("document.activeElement.matches('.editor textarea')")
    page.press("a", CONTROL)
    solution = studio.workshop.catalogue["masks"].solution.read_text()
    head, tail = solution.split("tl.load", 1)
    page.ask(f"document.execCommand('insertText', false, {json.dumps(head)})")
    page.type("tl.loa")
    shown(page, ".completions li[aria-selected=true]", "tl.load")
    assert "mask" in shown(page, ".hover code", "tl.load(")
    page.press("Enter")
    page.ask(f"document.execCommand('insertText', false, {json.dumps(tail)})")
    assert editor_text(page) == solution
    page.press("s", CONTROL)
    shown(page, ".verdict .solved", "Solved")
    page.press("n", ALT)
    shown(page, ".lesson h1", "How large a block?")
    assert page.complaints == []


@pytest.mark.slow
@in_a_browser
def test_third_exercise_after_a_reload_in_the_middle(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/strides")
    solution = studio.workshop.catalogue["strides"].solution.read_text()
    half = solution[: len(solution) // 2]
    page.click(".editor textarea", 0.1, 0.1)
    page.press("a", CONTROL)
    page.ask(f"document.execCommand('insertText', false, {json.dumps(half)})")
    shown(page, ".told", "not saved")
    reload(page)
    shown(page, ".told", "not saved")
    assert editor_text(page) == half
    page.press("2", ALT)
    page.press("a", CONTROL)
    page.ask(f"document.execCommand('insertText', false, {json.dumps(solution)})")
    page.press("s", CONTROL)
    shown(page, ".verdict .solved", "Solved")
    reload(page)
    shown(page, ".verdict .solved", "Solved")
    shown(page, ".told", "saved")
    assert page.complaints == []


@in_a_browser
def test_answer_of_an_unsolved_exercise_is_shown_only_when_asked_for(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/transpose-1")
    assert "begins with the answer to transpose-0" in shown(page, ".asks p")
    assert not studio.workshop.file_of(studio.workshop.catalogue["transpose-1"]).exists()
    page.press("2", ALT)
    page.press("s", CONTROL)
    page.ask("document.querySelector('.asks button').click()")
    shown(page, ".editor")
    assert page.complaints == []


@in_a_browser
def test_marked_line_stays_marked_when_lines_are_added_above(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/vector-add")
    marked = "[...document.querySelectorAll('.gutter .error')].map(one => one.textContent).join()"
    edit = "document.execCommand('insertText', false, "
    script = (
        "const { Editor } = await import('./static/editor.js');"
        "const one = new Editor({ label: 'x', saved() {}, changed() {} });"
        "document.body.replaceChildren(one.element); one.text = 'a\\nb\\nc'; one.mark(new Map([[2, 'wrong']]));"
        f"one.focus(); one.area.setSelectionRange(0, 0); {edit}'new\\n'); const added = {marked};"
        f"one.area.setSelectionRange(4, 6); {edit}''); const removed = {marked};"
        f"one.area.setSelectionRange(4, 6); {edit}''); return [added, removed, {marked}];"
    )
    assert page.ask(f"(async () => {{ {script} }})()") == ["3", "2", ""]


@in_a_browser
def test_caret_of_a_long_file_stays_on_its_text(studio: RunningStudio, browser: Browser) -> None:
    page = opened_long(browser, studio, 300)
    select_in_editor(page, "line_200")
    page.type("x")
    assert page.ask("document.querySelector('.editor textarea').scrollTop") == 0
    assert page.ask("document.querySelector('.editor').scrollTop") > 3000
    under = "(() => { const box = document.querySelector('.editor').getBoundingClientRect();"
    assert (
        page.ask(f"{under} return document.elementFromPoint(box.left + 200, box.top + 300).tagName; }})()")
        == "TEXTAREA"
    )
    assert page.ask("document.querySelectorAll('.gutter button').length") == 301


@in_a_browser
@pytest.mark.parametrize(("lines", "columns"), [(15_000, 1), (2, 200_000)])
def test_text_too_long_for_colours_is_edited_without(
    studio: RunningStudio, browser: Browser, lines: int, columns: int
) -> None:
    page = opened_long(browser, studio, lines, columns)
    assert "too long for colours" in shown(page, ".too-long")
    assert page.ask("document.querySelector('.paper code').children.length") == 0
    select_in_editor(page, "line_0")
    page.type("first")
    shown(page, ".told", "not saved")
    assert editor_text(page).startswith("first")
    height = page.ask("document.querySelector('.editor textarea').getBoundingClientRect().height")
    assert height > 20 * lines


@in_a_browser
def test_text_of_80_000_lines_is_shown_but_not_edited(studio: RunningStudio, browser: Browser) -> None:
    page = opened_long(browser, studio, 80_000)
    assert "80,001 lines: too long to edit here" in shown(page, ".too-long")
    page.ask("document.querySelector('.editor textarea').setSelectionRange(0, 0)")
    page.type("first")
    assert editor_text(page).startswith("line_0")


@in_a_browser
def test_paste_that_is_too_long_is_refused_in_one_line(studio: RunningStudio, browser: Browser) -> None:
    page = opened_long(browser, studio, 3)
    select_in_editor(page, "line_0")
    pasted = "{inputType: 'insertFromPaste', data: 'y = 2\\n'.repeat(200000), cancelable: true}"
    event = f"new InputEvent('beforeinput', {pasted})"
    assert not page.ask(f"document.querySelector('.editor textarea').dispatchEvent({event})")
    assert "Not pasted: the editor takes 20,000 lines" in shown(page, ".too-long")
    assert editor_text(page).startswith("line_0")
    write_over(page, "line_0", "first")
    assert editor_text(page).startswith("first")
    assert page.ask("document.querySelector('.too-long').hidden")


@in_a_browser
def test_change_outside_is_loaded_and_checked(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/silu")
    shown(page, ".told", "saved")
    studio.file("silu").write_text("def silu(x:\n")
    shown(page, ".told", "changed outside")
    assert editor_text(page) == "def silu(x:\n"
    shown(page, ".message", "silu.py:1")


@in_a_browser
def test_two_tabs_see_each_other_and_a_conflict(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/rms-norm")
    first = page.tab
    second = page.new_tab()
    opened(page, studio, "exercise/rms-norm")
    page.press("2", ALT)
    page.type("# second\n")
    page.press("s", CONTROL)
    shown(page, ".told", "saved")
    page.go_to(first)
    until(lambda: editor_text(page).startswith("# second\n"), lambda: editor_text(page)[:300])
    page.press("2", ALT)
    page.type("# first\n")
    page.go_to(second)
    page.press("2", ALT)
    page.type("# again\n")
    page.press("s", CONTROL)
    page.go_to(first)
    shown(page, ".conflict", "changed outside this tab")
    page.press("s", CONTROL)
    shown(page, ".told", "changed outside")
    assert "# first" not in studio.file("rms-norm").read_text()
    page.click(".conflict .mine")
    until(lambda: "# first" in studio.file("rms-norm").read_text())
    page.go_to(second)
    until(lambda: "# first" in editor_text(page))
    page.close_tab(second)


@in_a_browser
def test_killed_worker_is_replaced(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "exercise/vector-add")
    idle = threading.Event()
    studio.studio.checks._waiting.put(idle.set)  # the worker may still check what another test saved
    assert idle.wait(PATIENCE)
    process = until(lambda: studio.studio.checks.worker_process)
    checks = studio.workshop.progress().of("vector-add").checks
    os.kill(process, signal.SIGKILL)
    page.click(".save")
    until(lambda: studio.workshop.progress().of("vector-add").checks == checks + 1)
    until(lambda: not page.ask("!!document.querySelector('.busy')"))
    shown(page, ".verdict .stages")
    assert "SIGKILL" not in page.text(".verdict")
    assert studio.studio.checks.worker_process not in (None, process)
    assert page.ask("document.getElementById('trouble').hidden")


@pytest.mark.slow  # two commands, each in a process of its own
@in_a_browser
def test_free_mode_inspects_a_file(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "free")
    names = page.ask("[...document.querySelectorAll('.files a')].map(one => one.textContent)")
    mine = next(name for name in names if name.endswith("double.py"))
    page.open(f"{studio.address}#free/{mine.replace('/', '%2F')}")
    shown(page, ".panel.inspect button", "Run inspect")
    write_over(page, "BLOCK=128", "BLOCK=256")
    page.click(".panel.inspect button")
    shown(page, ".inspect .outcome", "inspect: passed")
    assert "BLOCK=256" in Path(mine).read_text()
    assert page.ask("document.querySelector('.inspect iframe').src").startswith(studio.address)
    page.click(".panel.check summary")
    page.click(".panel.check button")
    assert "fails when imported" in shown(page, ".check .outcome pre")
    assert page.complaints == []


@in_a_browser
def test_class_view_shows_everyone(studio: RunningStudio, browser: Browser) -> None:
    page = opened(browser, studio, "class")
    assert "Ada" in shown(page, ".everyone")
    page.click(".everyone .attempted button")
    assert "failed at parses, right" in shown(page, ".detail")
    assert page.complaints == []


@in_a_browser
@pytest.mark.parametrize("place", ["map", "exercise/vector-add", "free", "class"])
def test_phone_shows_no_page_wider_than_itself(studio: RunningStudio, browser: Browser, place: str) -> None:
    browser.resize(390, 800)
    try:
        page = opened(browser, studio, place)
        assert page.ask("document.documentElement.scrollWidth") <= 390
        if place.startswith("exercise"):
            for pane in ("lesson", "code", "checks", "picture"):
                page.click(f'.tabs [data-pane="{pane}"]')
                assert page.ask(f"document.querySelector('.pane.{pane}').getBoundingClientRect().height") > 300
    finally:
        browser.resize(1400, 900)


@in_a_browser
@pytest.mark.parametrize("width", [721, 900, 1151])
@pytest.mark.parametrize("place", ["exercise/vector-add", "free"])
def test_panes_do_not_scroll_sideways(studio: RunningStudio, browser: Browser, place: str, width: int) -> None:
    browser.resize(width, 900)
    try:
        page = opened(browser, studio, place)
        if place == "free":
            mine = page.ask("document.querySelector('.files a').textContent")
            page.open(f"{studio.address}#free/{mine.replace('/', '%2F')}")
            shown(page, ".panels")
        wide = (
            "[...document.querySelectorAll('main, .checks, .panels')].filter(one => one.scrollWidth > one.clientWidth)"
        )
        assert page.ask(f"{wide}.map(one => one.className).join()") == ""
    finally:
        browser.resize(1400, 900)
