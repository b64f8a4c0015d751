"""Reports on a terminal."""

from __future__ import annotations

from rich.console import Console

from tilesmith.lab.report.content import Cell, Column, Table
from tilesmith.lab.report.terminal import show_block


def test_a_number_stays_with_its_unit_in_a_narrow_table() -> None:
    columns = [Column("target"), Column("registers", "number"), Column("limited by"), Column("least time", "number")]
    table = Table("times", columns, [[Cell("cuda:90"), Cell("32"), Cell("shared memory"), Cell("3.33e-06 µs")]])
    console = Console(width=40, color_system=None)
    with console.capture() as captured:
        show_block(console, table)
    assert "3.33e-06 µs" in captured.get()
