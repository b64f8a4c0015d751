"""Reports on a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from tilesmith.lab.report.content import Cell, Column, Table
from tilesmith.lab.report.terminal import show_block


@pytest.mark.parametrize("width", [80, 120])
def test_long_name_stands_above_the_figures_of_its_row(width: int) -> None:
    names = [f"attention batch={batch} heads=40 queries=1 keys=149 head_size=40 causal bf16" for batch in (1, 64)]
    columns = [Column("case", "prose"), *(Column(f"time of provider {number}", "number") for number in range(5))]
    rows = [[Cell(name), *(Cell(f"{number}.0{line} µs") for number in range(5))] for line, name in enumerate(names)]
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        show_block(console, Table("times", columns, rows))
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    for line, name in enumerate(names):
        assert lines[lines.index(name) + 1] == " ".join(f"{number}.0{line} µs" for number in range(5))


def test_short_names_stay_in_their_rows() -> None:
    table = Table("times", [Column("case", "prose"), Column("time", "number")], [[Cell("b4 h8"), Cell("3 µs")]])
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        show_block(console, table)
    assert "b4 h8  3 µs" in captured.get()


def test_a_number_stays_with_its_unit_in_a_narrow_table() -> None:
    columns = [Column("target"), Column("registers", "number"), Column("limited by"), Column("least time", "number")]
    table = Table("times", columns, [[Cell("cuda:90"), Cell("32"), Cell("shared memory"), Cell("3.33e-06 µs")]])
    console = Console(width=40, color_system=None)
    with console.capture() as captured:
        show_block(console, table)
    assert "3.33e-06 µs" in captured.get()
