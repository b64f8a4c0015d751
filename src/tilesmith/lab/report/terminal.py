"""Print reports on a terminal. Names and messages are never interpreted as markup."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from tilesmith.lab.report.content import Block, Charts, Facts, Frame, Listing, Paragraph, Points, Table, Tone

_STYLES: dict[Tone, str] = {"plain": "", "good": "green", "bad": "bold red"}

# Leaves room for the other columns on a terminal of 80 characters; the page shows the full code.
_CODE_WIDTH = 36
_MOST_HEADING_LINES = 3  # more: the terminal is too narrow for the figures

# The width of a result that is printed in Python: a terminal of 100 columns, and a cell of a notebook.
_TEXT_WIDTH = 100


def as_text(show: Callable[[Console], None]) -> str:
    """Return what a function prints on a console, as plain text without spaces at the ends of lines."""
    console = Console(file=io.StringIO(), width=_TEXT_WIDTH, highlight=False, color_system=None)
    with console.capture() as captured:
        show(console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def show_heading(console: Console, title: str, lead: str) -> None:
    """Print the heading of a section and its first sentence."""
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Text(lead, style="dim"))
    console.print()


def show_block(console: Console, block: Block) -> None:
    """Print one part of a section. Listings are not wrapped, so that users can copy them."""
    console.print(_rendered(block), soft_wrap=isinstance(block, Listing))
    console.print()


def _rendered(block: Block) -> RenderableType:
    match block:
        case Table():
            return _table(block)
        case Facts():
            grid = _grid()
            for name, value in block.values.items():
                grid.add_row(Text(name, style="dim"), Text(value))
            return grid
        case Points():
            grid = _grid()
            for sentence in block.sentences:
                grid.add_row("•", Text(sentence))
            return grid
        case Paragraph():
            return Text(block.text)
        case Listing():
            return Text(block.text, style=_STYLES[block.tone])
        case Charts():
            return Group(*(_table(chart.table) for chart in block.charts))
        case Frame():
            return Text(block.instead)


def _grid() -> Grid:
    return Grid(box=None, pad_edge=False, show_header=False)


def _table(table: Table) -> RenderableType:
    grid: RenderableType = _columns(table)
    if table.columns[0].holds == "prose":
        grid = _NamedRows(table)
    return Group(Text(table.caption, style="italic"), grid)


class _NamedRows:
    """A table whose rows have long names. Where it does not fit, each name stands above the figures of its row."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole, figures = _columns(self._table), _columns(self._table, first=1)
        lines = console.render_lines(Padding(figures, (0, 0, 0, 2)), options, pad=False)
        head = len(lines) - len(self._table.rows)
        fits = Measurement.get(console, options.update(max_width=1000), whole).maximum <= options.max_width
        if fits or head > _MOST_HEADING_LINES:
            yield whole
            return
        for number, line in enumerate(lines):
            if number >= head:
                yield Text(self._table.rows[number - head][0].text)
            yield from line
            yield Segment.line()


def _columns(table: Table, first: int = 0) -> Grid:
    """Return the columns of a table from the first one."""
    grid = Grid(box=None, pad_edge=False)
    for number, column in list(enumerate(table.columns))[first:]:
        longest = max((row[number].text for row in table.rows), key=len, default="")
        with_unit = column.holds == "number" and " " in longest and len(longest) >= len(column.heading)
        grid.add_column(
            Text(column.heading),
            justify="right" if column.holds == "number" else "left",
            no_wrap=column.holds == "code" or with_unit,  # other columns wrap first
            min_width=len(longest) if first else None,  # rows of one line: only headings wrap
            max_width=_CODE_WIDTH if column.holds == "code" else None,
            header_style="dim",
        )
    for row in table.rows:
        grid.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in row[first:]))
    return grid
