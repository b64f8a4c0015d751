# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The statements of a program with what its variables hold, and the view of the inspect page that plays them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from browser import CHROMIUM, Browser
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilesmith.lab.inspect import Inspection, inspect
from tilesmith.lab.inspect.model import Kernel, ProgramStep
from tilesmith.lab.inspect.output.page import write_html
from tilesmith.lab.inspect.output.page_data import MOST_STEP_BYTES, page_data
from tilesmith.lab.inspect.tracing.steps import MOST_STEPS
from tilesmith.toolchain.interpreter.values import variables
from tilesmith.toolchain.variable import Variable

EVIL = '</script><img src="x" onerror="window.injected = 1">'


@triton.jit
def squared(v):
    w = v * v
    return w  # noqa: RET504


@triton.jit
def row_sums(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + row * columns + column,
            mask=column < columns,
        )
        total += tl.where(column < columns, squared(x), 0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


@triton.jit
def too_far(x_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(x_ptr + places, places)
    done = places + 1  # noqa: F841


@triton.jit
def long_walk(x_ptr, steps, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in range(steps):
        total += number
    tl.store(x_ptr + tl.arange(0, BLOCK), total)


@triton.jit
def half_sum(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(y_ptr + tl.arange(0, BLOCK), x + x)


@gluon.jit
def through_shared_memory(x_ptr, y_ptr, SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    places = gl.arange(0, SIZE, layout)
    x = gl.load(x_ptr + places)
    held = gl.allocate_shared_memory(gl.float32, [SIZE], flat)
    held.store(x)
    y = held.load(layout)
    gl.store(y_ptr + places, y)


def inspected(launch: Callable[[], object]) -> Inspection:
    return inspect(launch, targets=["cuda:90"])


def launch_row_sums() -> None:
    x = torch.arange(10.0, device="cuda").reshape(2, 5)
    row_sums[(2,)](x, torch.empty(2, device="cuda"), 5, BLOCK=4)


@pytest.fixture(scope="module")
def found() -> Inspection:
    return inspected(launch_row_sums)


def steps_of(inspection: Inspection, program: int = 0) -> tuple[ProgramStep, ...]:
    return inspection.kernels[0].program_facts[program].steps


def first(steps: tuple[ProgramStep, ...], code: str, time: int = 0) -> ProgramStep:
    return [one for one in steps if one.code.startswith(code)][time]


def only(step: ProgramStep) -> Variable:
    (variable,) = step.changed
    return variable


def test_each_statement_shows_what_it_changed(found: Inspection) -> None:
    steps = steps_of(found, program=1)
    assert steps[0].code.startswith("def row_sums(")
    arguments = {one.name: one for one in steps[0].changed}
    assert (arguments["columns"].rows, arguments["BLOCK"].memory) == ((("5",),), "constant")
    assert (arguments["x_ptr"].format, arguments["x_ptr"].rows) == ("x_ptr +", (("0",),))
    assert only(first(steps, "row =")).rows == (("1",),)
    total = only(first(steps, "total ="))
    assert (total.shape, total.format, total.bits, total.memory) == ((4,), "fp32", 32, "registers")
    assert [only(one).rows for one in steps if one.code.startswith("column =")] == [
        (("0", "1", "2", "3"),),
        (("4", "5", "6", "7"),),
    ]


def test_load_over_several_lines_is_one_step_with_its_lanes(found: Inspection) -> None:
    load = first(steps_of(found, program=1), "x = tl.load(", time=1)
    assert load.accesses == (("load", "x_ptr", 1, 4),)
    assert only(load).rows == (("9", "?", "?", "?"),)  # no `other`: masked lanes have no value
    assert "3 undefined" in only(load).summary


def test_called_function_has_its_own_variables_until_it_returns(found: Inspection) -> None:
    steps = steps_of(found)
    inner = first(steps, "w = v * v")
    assert (inner.function, only(inner).name, only(inner).rows) == ("squared", "squared.w", (("0", "1", "4", "9"),))
    assert "squared.w" in first(steps, "return w").dead


def test_variable_is_dead_after_its_last_reader(found: Inspection) -> None:
    steps = steps_of(found)
    assert {"column", "x"} <= set(first(steps, "total +=").dead)
    assert "row" not in first(steps, "total +=", time=1).dead
    assert {"row", "total", "y_ptr"} <= set(first(steps, "tl.store(").dead)


def test_values_of_bfloat16_are_numbers_not_bits() -> None:
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    steps = steps_of(inspected(lambda: half_sum[(1,)](x.cuda(), torch.empty_like(x).cuda(), BLOCK=2)))
    assert only(first(steps, "x =")).rows == (("1.5", "-2"),)
    assert only(first(steps, "x =")).format == "bf16"


def test_access_out_of_bounds_shows_at_its_step() -> None:
    steps = steps_of(inspected(lambda: too_far[(1,)](torch.zeros(4, device="cuda"), BLOCK=8)))
    assert first(steps, "tl.store(").accesses == (("store", "x_ptr", 8, 8),)


def test_number_of_steps_is_bounded_and_told() -> None:
    inspection = inspected(lambda: long_walk[(1,)](torch.zeros(4, device="cuda"), 500, BLOCK=4))
    facts = inspection.kernels[0].program_facts[0]
    assert len(facts.steps) == MOST_STEPS
    assert facts.steps_in_all > 1000
    assert "total" not in facts.steps[-1].dead


def test_variables_are_not_described_after_the_last_kept_step(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    tile = variables._tile

    def noted(name: str, handle: Any, memory: Any) -> Variable:
        described.append(name)
        return tile(name, handle, memory)

    monkeypatch.setattr(variables, "_tile", noted)
    inspected(lambda: long_walk[(1,)](torch.zeros(4, device="cuda"), 500, BLOCK=4))
    assert 0 < described.count("total") <= MOST_STEPS


def test_shared_memory_of_gluon_shows_its_content() -> None:
    x = torch.arange(64.0)
    launch = lambda: through_shared_memory[(1,)](x.cuda(), torch.empty_like(x).cuda(), SIZE=64)  # noqa: E731
    steps = steps_of(inspected(launch))
    empty, full = (one for step in steps for one in step.changed if one.memory == "shared")
    assert empty.rows == (("?",) * 6,)
    assert (full.name, full.rows) == ("held", (("0", "1", "2", "3", "4", "5"),))


def test_page_stays_small_with_many_kernels(found: Inspection) -> None:
    kernel = found.kernels[0]
    facts = kernel.program_facts[0]
    many = replace(facts, steps=facts.steps * 12, steps_in_all=12 * len(facts.steps))
    large = replace(found, kernels=(replace(kernel, program_facts=(many,) * 4),) * 30)
    kept = [program["steps"] for one in page_data(large)["kernels"] for program in one["traced"]]
    assert all(kept)
    assert len(json.dumps(kept)) < 1.1 * MOST_STEP_BYTES


def with_evil_names(kernel: Kernel) -> Kernel:
    def evil(step: ProgramStep) -> ProgramStep:
        changed = tuple(replace(one, name=EVIL, format=EVIL, rows=((EVIL,),), summary=EVIL) for one in step.changed)
        accesses = tuple((EVIL, EVIL, active, lanes) for _, _, active, lanes in step.accesses)
        return replace(step, code=EVIL, function=EVIL, raised=EVIL, changed=changed, accesses=accesses, dead=(EVIL,))

    facts = (replace(one, steps=tuple(map(evil, one.steps))) for one in kernel.program_facts)
    return replace(kernel, program_facts=tuple(facts))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_view_steps_by_slider_keys_and_buttons(found: Inspection, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(write_html(found))
    with Browser(tmp_path, 1400, 900) as browser:
        browser.open(page)
        assert browser.ask("document.querySelectorAll('.play .program').length") == 2
        assert "def row_sums" in browser.text(".play .program pre")
        browser.click('.play [data-by="1"]')
        assert "row = tl.program_id(0)" in browser.text(".play .program pre")
        assert browser.ask(
            "[...document.querySelectorAll('.play .changed .values')].map((one) => one.innerText.trim())"
        ) == [
            "0",
            "1",
        ]
        browser.ask("document.querySelector('.play .stage').focus()")
        for _ in range(3):
            browser.press("ArrowRight")
        assert "column = start" in browser.text(".play .program pre")
        browser.press("PageDown")
        assert "4" in browser.text(".play .changed .values")
        assert "4 to 7" in browser.text(".play .changed td small")
        browser.press("End")
        assert browser.ask("document.querySelector('.play [data-by=\"1\"]').disabled") is True
        browser.press("Home")
        assert "def row_sums" in browser.text(".play .program pre")
        browser.ask(
            "const slider = document.querySelector('.play input'); slider.value = 2; "
            "slider.dispatchEvent(new Event('input'))"
        )
        assert "total = tl.zeros" in browser.text(".play .program pre")
        assert "total = tl.zeros" in browser.text(".play .code .picked")
        browser.click(".play .chips button:nth-child(2)")
        assert browser.ask("document.querySelectorAll('.play .program').length") == 1
        browser.click(".play .chips button:nth-child(1)")  # one program always stays
        assert browser.ask("document.querySelectorAll('.play .program').length") == 1
        assert browser.ask("document.getAnimations().length") == 0
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_view_fits_a_phone_and_shows_hostile_names_as_text(found: Inspection, tmp_path: Path, dark: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text(write_html(replace(found, kernels=(with_evil_names(found.kernels[0]),))))
    with Browser(tmp_path, 390, 800, dark) as browser:
        browser.open(page)
        browser.click('.play [data-by="1"]')
        assert EVIL in browser.text(".play .program pre")
        assert browser.ask("window.injected") is None
        assert browser.ask("document.documentElement.scrollWidth") <= 390
        assert browser.ask("document.querySelectorAll('.play .program').length") == 1
        browser.press("End")
        browser.ask("document.querySelector('.play .values tr').innerHTML = '<td>-0.08228</td>'.repeat(9)")
        assert browser.ask("document.querySelector('.play .values').getBoundingClientRect().right") <= 390
        browser.ask("document.querySelector('h1').textContent = 'Kernels of layer_norm_of_a_long_name.py'")
        assert browser.ask("(one => one.scrollWidth - one.clientWidth)(document.querySelector('h1'))") <= 0
        assert browser.complaints == []


@triton.jit
def copy_by_block_pointers(x_ptr, y_ptr, rows, SIZE: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (rows, 16), (16, 1), (0, 0), (SIZE, 16), (1, 0))
    y = tl.make_block_ptr(y_ptr, (rows, 16), (16, 1), (0, 0), (SIZE, 16), (1, 0))
    tl.store(y, tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))


@pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton 3.9 has no block pointers")
def test_block_pointers_are_shown_with_their_offsets() -> None:
    x, y = torch.randn(12, 16), torch.zeros(12, 16)
    (kernel,) = inspect(lambda: copy_by_block_pointers[(1,)](x, y, 12, SIZE=16), targets=["cuda:90"]).kernels
    assert not [one for one in kernel.findings if one.kind == "kernel-error"]
    assert torch.equal(x, y)


@triton.jit
def masked_square(x_ptr, y_ptr, size, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, 16)[None, :]
    inside = (row < size) & (column < size)
    tl.store(y_ptr + row * 16 + column, tl.load(x_ptr + row * 16 + column, mask=inside, other=0.0), mask=inside)


def test_blocks_of_two_dimensions_broadcast_with_scalars() -> None:
    x, y = torch.randn(16, 16), torch.zeros(16, 16)
    (kernel,) = inspect(lambda: masked_square[(1,)](x, y, 12, SIZE=16), targets=["cuda:90"]).kernels
    assert not [one for one in kernel.findings if one.kind == "kernel-error"]
    assert torch.equal(x[:12, :12], y[:12, :12])
