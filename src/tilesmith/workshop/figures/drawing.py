"""A small drawing library: boxes, grids, arrows and texts as SVG, in colours of the page's palette.

A drawing is 360 units wide, so that its texts stay readable on a phone. Shapes have classes and no colours of their
own: `figures.css` colours them, in light and in dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

WIDTH = 360
STYLE = Path(__file__).with_name("figures.css")
Kind = str  # "plain", "dim", "bad", "good", "mark", or "0" to "5" for the colours of programs


@dataclass
class Drawing:
    """One picture, or one step of a figure. Every method adds a shape and returns the drawing."""

    parts: list[str] = field(default_factory=list)
    height: float = 0.0

    def box(self, x: float, y: float, width: float, height: float, kind: Kind = "plain", label: str = "") -> Drawing:
        """Add a box with a label in its middle."""
        self._add(f'<rect class="c-{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"/>')
        self._reach(y + height)
        return self.text(x + width / 2, y + height / 2 + 4, label, "inside") if label else self

    def text(self, x: float, y: float, text: str, kind: Kind = "", anchor: str = "middle") -> Drawing:
        """Add a text; y is its baseline."""
        self._reach(y + 5)
        return self._add(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def left(self, x: float, y: float, text: str, kind: Kind = "") -> Drawing:
        """Add a text that begins at x."""
        return self.text(x, y, text, kind, "start")

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: Kind = "line") -> Drawing:
        self._reach(max(y, to_y))
        return self._add(f'<line class="{kind}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, kind: Kind = "line") -> Drawing:
        """Add a line with a head at its end."""
        length = max(((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5, 1e-9)
        along_x, along_y = 6 * (to_x - x) / length, 6 * (to_y - y) / length
        points = (
            f"{to_x:g},{to_y:g} {to_x - along_x - along_y / 2:.1f},{to_y - along_y + along_x / 2:.1f} "
            f"{to_x - along_x + along_y / 2:.1f},{to_y - along_y - along_x / 2:.1f}"
        )
        self.line(x, y, to_x - along_x / 2, to_y - along_y / 2, kind)
        return self._add(f'<polygon class="head {kind}" points="{points}"/>')

    def frame(self, x: float, y: float, width: float, height: float, kind: Kind = "mark") -> Drawing:
        """Add a thick empty frame around something."""
        self._reach(y + height)
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        return self._add(f'<rect class="frame-{kind}" {shape} rx="3"/>')

    def grid(
        self,
        x: float,
        y: float,
        rows: int,
        columns: int,
        kind: Callable[[int, int], Kind] = lambda row, column: "plain",
        label: Callable[[int, int], object] = lambda row, column: "",
        size: float | tuple[float, float] = 20,
    ) -> Drawing:
        """Add a grid of cells; `kind` and `label` take row and column. `size` is the side, or width and height."""
        width, height = size if isinstance(size, tuple) else (size, size)
        for row in range(rows):
            for column in range(columns):
                at = (x + column * width, y + row * height)
                self.box(*at, width - 1, height - 1, kind(row, column), str(label(row, column)))
        return self

    def cells(
        self, x: float, y: float, labels: Sequence[object], kinds: Sequence[Kind] | Kind = "plain", size: float = 20
    ) -> Drawing:
        """Add a row of cells with these labels."""
        chosen = [kinds] * len(labels) if isinstance(kinds, str) else kinds
        return self.grid(x, y, 1, len(labels), lambda _, one: chosen[one], lambda _, one: labels[one], (size, 20))

    def _add(self, part: str) -> Drawing:
        self.parts.append(part)
        return self

    def _reach(self, y: float) -> None:
        self.height = max(self.height, y)


@dataclass(frozen=True)
class Figure:
    """A figure: drawings with a caption each. Several drawings are steps, which the reader selects."""

    description: str
    steps: Sequence[tuple[Drawing, str]]

    def html(self, name: str) -> Markup:
        """Return the figure as HTML. `name` must be unique in the page.

        The steps are radio buttons, so arrow keys work without a script, and nothing moves by itself.
        """
        height = max(drawing.height for drawing, _ in self.steps) + 6
        several = len(self.steps) > 1
        groups = "".join(
            f'<g class="step step-{number}">{"".join(drawing.parts)}</g>'
            for number, (drawing, _) in enumerate(self.steps, 1)
        )
        captions = "".join(
            f'<figcaption class="step step-{number}">{escape(caption)}</figcaption>'
            for number, (_, caption) in enumerate(self.steps, 1)
        )
        return Markup(
            f'<figure class="figure{" moves" if several else ""}">'
            f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(self.description)}">{groups}</svg>'
            f"{_buttons(name, len(self.steps)) if several else ''}{captions}</figure>"
        )

    def svg(self) -> str:
        """Return the first step as an SVG file of its own, with its colours."""
        drawing = self.steps[0][0]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {drawing.height + 6:g}" class="figure">'
            f"<title>{escape(self.description)}</title><style>{_ALONE}{STYLE.read_text(encoding='utf-8')}</style>"
            f"{''.join(drawing.parts)}</svg>\n"
        )


def _buttons(name: str, count: int) -> str:
    buttons = "".join(
        f'<input type="radio" name="{escape(name)}" class="at-{number}" aria-label="step {number} of {count}"'
        f"{' checked' if number == 1 else ''}>"
        for number in range(1, count + 1)
    )
    return f'<div class="slider" role="radiogroup" aria-label="Steps of the figure">{buttons}</div>'


_ALONE = (
    ":root { --paper: #fff; --raised: #f3f3ef; --ink: #1b1d1f; --quiet: #5c6166; --line: #c8c8c0; --accent: #0b6470; "
    "--good: #1d6b3a; --bad: #a8201a; --series-0: #0b6470; --series-1: #c2410c; --series-2: #6d4bc3; "
    "--series-3: #9a6a00; --series-4: #b0246e; --series-5: #2563a8; }"
)
