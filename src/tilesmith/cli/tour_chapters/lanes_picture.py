"""The picture that opens the tour: lanes of one warp and the sectors that they request, before and after a repair."""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.lab.inspect.model import AccessFacts, Kernel, Request
from tilesmith.lab.report.content import Panel, Picture

WIDTH, HEIGHT = 440, 130
LANES = 32
MOST_DRAWN = 64  # sectors; more would not be told apart


def lanes_picture(slow: Kernel, mended: Kernel, sector_bytes: int) -> Picture | None:
    """Return the picture of both kernels' first load; None where a request was not traced."""
    panels = [_panel(title, kernel, sector_bytes) for title, kernel in (("Before", slow), ("After", mended))]
    drawn = [panel for panel in panels if panel is not None]
    if len(drawn) < len(panels):
        return None
    return Picture("One load of one warp: 32 lanes, and the sectors of memory that they request", drawn)


def _panel(title: str, kernel: Kernel, sector_bytes: int) -> Panel | None:
    number, load = next((one for one in enumerate(kernel.accesses) if one[1].kind == "load"), (0, None))
    request = _first_request(kernel, number)
    if load is None or request is None:
        return None
    used = request.ideal_sectors / request.sectors
    loaded = max((len(offsets) for _, offsets in request.lanes), default=0) * load.element_bytes
    sentence = (
        f"{kernel.name}: each lane loads {loaded} bytes. The warp moves {request.sectors} sectors of {sector_bytes} "
        f"bytes; {request.ideal_sectors} would do. {used:.1%} of the moved bytes are used."
    )
    return Panel(title, "".join(_drawing(request, load, sector_bytes)), sentence, "good" if used > 0.9 else "bad")


def _first_request(kernel: Kernel, access: int) -> Request | None:
    """Return the first traced request of this access, by any program."""
    return next(
        (
            request
            for program in kernel.program_facts
            for execution in program.accesses
            if execution.access == access
            for request in execution.requests
        ),
        None,
    )


def _drawing(request: Request, load: AccessFacts, sector_bytes: int) -> Iterator[str]:
    """Yield the parts of an SVG: lanes above, sectors below, a line from each lane to each of its sectors."""
    wanted = {
        lane: sorted({offset * load.element_bytes // sector_bytes for offset in offsets})
        for lane, offsets in request.lanes
    }
    sectors = sorted({sector for each in wanted.values() for sector in each})[:MOST_DRAWN]
    places = {sector: _place(number, len(sectors)) for number, sector in enumerate(sectors)}
    good = request.sectors <= request.ideal_sectors
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-hidden="true">'
    yield f'<text x="0" y="12">lanes 0 to {LANES - 1}</text>'
    for lane, needed in wanted.items():
        x = _place(lane, LANES)
        yield "".join(
            f'<line x1="{x + 5:.1f}" y1="30" x2="{places[sector] + 5:.1f}" y2="96"/>'
            for sector in needed
            if sector in places
        )
        yield f'<rect class="lane" x="{x:.1f}" y="20" width="10" height="10" rx="2"/>'
    for x in places.values():
        yield f'<rect class="{"good" if good else "bad"}" x="{x:.1f}" y="96" width="10" height="10" rx="2"/>'
    yield f'<text x="0" y="124">{len(sectors)} sectors</text></svg>'


def _place(number: int, count: int) -> float:
    """Return the left edge of one of several boxes: spread over the width where there are many, else in the middle."""
    step = min(WIDTH / max(count, 1), WIDTH / LANES)
    return (WIDTH - step * count) / 2 + step * number + (step - 10) / 2
