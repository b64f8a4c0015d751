"""Speed ratios as a curve: one column a case, from the slowest to the fastest, on a logarithmic axis.

Charts are SVG without scripts or external fonts. They bring their own background, so their text is readable on light
and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import log2
from typing import NamedTuple

LEAST, MOST = 0.5, 8.0  # the range of the axis; values beyond are drawn at its end
EVEN = 1 / 1.03  # a case this far behind, or less, counts as even

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", sans-serif; fill: #1b1d1f; }
  .card { fill: #fcfcfa; stroke: #dcdcd5; }
  .title { font-weight: 650; }
  .quiet { fill: #5c6166; font-size: 11.5px; }
  .ours { fill: #0b6470; }
  .rival { fill: #b9bdb9; }
  .grid { stroke: #dcdcd5; }
  .even { stroke: #5c6166; stroke-dasharray: 4 3; }
  .win { fill: #0b6470; fill-opacity: 0.8; }
  .loss { fill: #c2410c; fill-opacity: 0.8; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e7e6e2; }
    .card { fill: #15171a; stroke: #34383d; }
    .quiet { fill: #a2a7ad; }
    .ours { fill: #6cc5cf; }
    .rival { fill: #565b61; }
    .grid { stroke: #34383d; }
    .even { stroke: #a2a7ad; }
    .win { fill: #6cc5cf; }
    .loss { fill: #ff9b66; }
  }
"""  # noqa: E501


class Area(NamedTuple):
    """The place of a curve, in pixels."""

    left: float
    right: float
    top: float
    bottom: float

    def height_of(self, ratio: float) -> float:
        """Return the place of a ratio on the vertical axis."""
        share = log2(min(max(ratio, LEAST), MOST) / LEAST) / log2(MOST / LEAST)
        return self.bottom - share * (self.bottom - self.top)


def svg(width: float, height: float, described: str, body: Iterable[str]) -> str:
    """Return a chart on its card. `described` is the chart in words, for readers who do not see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(described, quote=True)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def ratio_columns(area: Area, ratios: Sequence[float]) -> Iterator[str]:
    """Yield the axis and one column for each ratio, the smallest first."""
    for tick in (0.5, 1, 2, 4, 8):
        y = area.height_of(tick)
        kind = "even" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{area.left}" y1="{y:.1f}" x2="{area.right}" y2="{y:.1f}"/>'
        yield f'<text class="quiet" x="{area.left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g} ×</text>'
    step = (area.right - area.left) / len(ratios)
    even = area.height_of(1)
    for number, ratio in enumerate(sorted(ratios)):
        top, bottom = sorted((area.height_of(ratio), even))
        place = f'x="{area.left + number * step:.2f}" y="{top:.1f}" width="{step:.2f}"'
        yield f'<rect class="{"win" if ratio >= 1 else "loss"}" {place} height="{bottom - top:.1f}"/>'
