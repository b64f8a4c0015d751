"""The content of a report without its layout: terminal and page show the same sections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["plain", "good", "bad"]
Origin = Literal["counted", "measured", "predicted"]
"""How a figure was found. Pages show measured and predicted figures differently."""


@dataclass(frozen=True)
class Cell:
    """One value of a table. A page draws a `share` between 0 and 1 as a bar beside the text."""

    text: str
    tone: Tone = "plain"
    share: float | None = None


@dataclass(frozen=True)
class Column:
    """A column. Numbers are right-aligned, prose wraps, code is monospaced and truncated on a narrow terminal."""

    heading: str
    holds: Literal["text", "number", "prose", "code"] = "text"


@dataclass(frozen=True)
class Table:
    """Rows of cells under a caption. The first cell of a row names the row."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    origin: Origin = "counted"


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
    """Preformatted text: commands, source, output of a tool."""

    kind: ClassVar[str] = "listing"
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high` with labelled ticks."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Mark:
    """One point of a chart, its name and its figures. An `open` mark was not measured."""

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
    """Marks of one kind, and the line through them. `style` is the index in the legend; it sets shape and colour."""

    style: int
    marks: Sequence[Mark]
    line: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Ceiling:
    """A limit, drawn as a line with its label above the point `label_at`."""

    label: str
    points: Sequence[tuple[float, float]]
    label_at: tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A chart, and the same figures as a table."""

    title: str
    x: Axis
    y: Axis
    ceilings: Sequence[Ceiling]
    series: Sequence[Series]
    table: Table


@dataclass(frozen=True)
class Charts:
    """Charts with one legend, in which each kind of mark can be switched off."""

    kind: ClassVar[str] = "charts"
    legend: Sequence[str]
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Frame:
    """A page in an iframe, with its own style and script. A terminal shows the sentence `instead`."""

    kind: ClassVar[str] = "frame"
    title: str
    page: str
    instead: str


@dataclass(frozen=True)
class Panel:
    """One drawing of a picture: a title, an SVG of this package, and the drawing in words."""

    title: str
    drawing: str
    sentence: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Picture:
    """Drawings side by side. A page opens with it; a terminal shows the sentences."""

    title: str
    panels: Sequence[Panel]


Block = Table | Facts | Points | Paragraph | Listing | Charts | Frame


@dataclass(frozen=True)
class Section:
    """A heading, one introductory sentence, and the content."""

    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Headline:
    """A figure for the top of a page, and its meaning in a few words."""

    figure: str
    meaning: str
    tone: Tone = "plain"
    origin: Origin = "counted"
    minor: bool = False  # left to its section where a page has little room
