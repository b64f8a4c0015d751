"""What a report says, apart from how it looks: the same sections go to the terminal and onto the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["plain", "good", "bad"]


@dataclass(frozen=True)
class Cell:
    """One value of a table. A `share` between 0 and 1 is drawn as a bar beside the text on a page."""

    text: str
    tone: Tone = "plain"
    share: float | None = None


@dataclass(frozen=True)
class Column:
    """Numbers are set flush right; prose may take several lines; code is in letters of one width, and cut short where
    a terminal is too narrow."""

    heading: str
    holds: Literal["text", "number", "prose", "code"] = "text"


@dataclass(frozen=True)
class Table:
    """Rows of cells under a caption that says what is compared. The first cell of a row names the row."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    kind: ClassVar[str] = "facts"
    values: Mapping[str, str]


@dataclass(frozen=True)
class Points:
    """A short list of sentences."""

    kind: ClassVar[str] = "points"
    sentences: Sequence[str]


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Listing:
    """Text that is shown as it is, letter by letter: commands, source, what a tool said."""

    kind: ClassVar[str] = "listing"
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, with the places on it that are named."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, between 0 at the low end and 1 at the high end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Mark:
    """One measurement on a chart: its name, and the figures shown for it. An `open` mark was not measured."""

    x: float
    y: float
    name: str
    figures: Sequence[str]
    open: bool = False

    @property
    def place(self) -> tuple[float, float]:
        return self.x, self.y


@dataclass(frozen=True)
class Series:
    """Marks of one kind, and the line that joins them. `style` is its place in the legend: its shape and colour."""

    style: int
    marks: Sequence[Mark]
    line: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Ceiling:
    """A limit, drawn as a line; its label stands above the point `label_at`."""

    label: str
    points: Sequence[tuple[float, float]]
    label_at: tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A drawing, and the same figures as a table for those who cannot see it."""

    title: str
    x: Axis
    y: Axis
    ceilings: Sequence[Ceiling]
    series: Sequence[Series]
    table: Table


@dataclass(frozen=True)
class Charts:
    """Charts that share a legend, in which each kind of mark can be switched off."""

    kind: ClassVar[str] = "charts"
    legend: Sequence[str]
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Frame:
    """A page within the page, with a style and a script of its own; a terminal shows the sentence `instead`."""

    kind: ClassVar[str] = "frame"
    title: str
    page: str
    instead: str


Block = Table | Facts | Points | Paragraph | Listing | Charts | Frame


@dataclass(frozen=True)
class Section:
    """A heading, one sentence that says what is shown and why it matters, and then the result."""

    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Headline:
    """A figure for the top of a page, and the few words that say what it is."""

    figure: str
    meaning: str
    tone: Tone = "plain"
