"""The figures of the exercises: every page opens with one, readable on a phone, in light and in dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.figures.all_figures import FIGURES, figure_of
from tilesmith.workshop.figures.drawing import STYLE, WIDTH
from tilesmith.workshop.learner.workshop_folder import Workshop
from tilesmith.workshop.publishing.lesson_html import lesson_html

EXERCISES = Catalogue()
ADVANCE = {"code": 6.1, "": 6.2, "inside": 5.6}  # the width of a letter, roughly
MOST_STEPS = STYLE.read_text().count("figcaption.step-")


def html_of(name: str) -> str:
    figure = figure_of(name)
    assert figure is not None
    return str(figure.html(name))


@pytest.mark.parametrize("name", EXERCISES)
def test_page_opens_with_a_figure(name: str) -> None:
    text = lesson_html(EXERCISES[name])
    assert text.startswith("<figure")
    assert text.count("<figure") == 1


@pytest.mark.parametrize("name", FIGURES)
def test_figure_stays_inside_its_width(name: str) -> None:
    figure = figure_of(name)
    assert figure is not None
    assert 1 <= len(figure.steps) <= MOST_STEPS
    for drawing, caption in figure.steps:
        assert caption.endswith(".")
        shapes = xml.fromstring(f"<g>{''.join(drawing.parts)}</g>")
        for one in shapes.iter("rect"):
            assert float(one.attrib["x"]) >= 0
            assert float(one.attrib["x"]) + float(one.attrib["width"]) <= WIDTH, xml.tostring(one)
        for one in shapes.iter("text"):
            long = len(one.text or "") * ADVANCE.get(one.attrib["class"], ADVANCE[""])
            start = float(one.attrib["x"]) - (long / 2 if one.attrib["text-anchor"] == "middle" else 0)
            assert start >= -4, one.text
            assert start + long <= WIDTH + 4, one.text


def test_at_least_ten_figures_have_steps_selected_by_keys() -> None:
    moving = [name for name in FIGURES if html_of(name).count('type="radio"') > 1]
    assert len(moving) >= 10
    for name in moving:
        text = html_of(name)
        steps = text.count('<g class="step')
        assert steps == text.count('type="radio"') == text.count("<figcaption")
        assert f'name="{name}"' in text


def test_figures_have_no_colours_or_styles_of_their_own() -> None:
    for name in FIGURES:
        assert not re.search(r"style=|fill=|stroke=|#[0-9a-f]{3}|<animate|<script", html_of(name))
    assert not re.search(r"#[0-9a-f]{3}|animation|transition", STYLE.read_text())


def test_every_class_of_a_shape_has_a_rule() -> None:
    style = STYLE.read_text()
    used = {one for name in FIGURES for one in re.findall(r'class="((?:c|frame)-\w+)"', html_of(name))}
    assert used
    for one in used:
        assert f".{one} " in style


def test_pages_have_no_ascii_art() -> None:
    for exercise in EXERCISES.values():
        found = re.search(r"[─-▟■◩]{1}|\+--|--\+", exercise.page.read_text())
        assert found is None, f"{exercise.id}: {found}"


def test_causal_figure_masks_every_diagonal_block_and_skips_all_after() -> None:
    figure = figure_of("flash-attention-causal")
    assert figure is not None
    drawing = figure.steps[0][0]
    assert sum(">½<" in part for part in drawing.parts) == 4
    assert sum("c-dim" in part for part in drawing.parts) == 6


def test_learners_copy_of_a_page_shows_the_figure(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, EXERCISES)
    workshop.start(EXERCISES["vector-add"])
    page = workshop.page_of(EXERCISES["vector-add"])
    assert "(figure.svg)" in page.read_text().split("\n\n")[1]
    assert xml.parse(page.with_name("figure.svg")).getroot().tag.endswith("svg")
    assert "<img" not in lesson_html(EXERCISES["vector-add"], page)
