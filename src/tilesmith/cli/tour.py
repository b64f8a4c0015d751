"""`tilesmith tour`: show everything on this machine in about a minute, and write one HTML page."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith import __version__
from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.cli.tour_chapters.chapter import Chapter, Told
    from tilesmith.toolchain.machine import Machine


def tour(
    html: Annotated[Path, typer.Option(metavar="FILE", help="The HTML page to write.")] = Path("tilesmith-tour.html"),
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Show everything on this machine in about a minute, and write one HTML page.

    Exit status 1 if an operator of this package is wrong on this machine.
    """
    from tilesmith.toolchain.machine import examine

    with console.status("examining this machine"):
        machine = examine()
    if machine.torch is None or machine.triton is None:
        refuse(f"the tour runs Triton kernels. {machine.advice[0]}")

    from tilesmith.cli.tour_chapters.contents import chapters

    started = time.monotonic()
    told = [(chapter, _tell(chapter)) for chapter in chapters(machine)]
    seconds = time.monotonic() - started
    if json:
        found = {name: value for _, one in told for name, value in one.findings.items()}
        write_json(json, {"tilesmith": __version__, "seconds": round(seconds, 1), **found})
    write_result(html, _page(machine, told, seconds))
    console.print(f"The tour as a page: {html}", soft_wrap=True, markup=False)
    if not all(one.passed for _, one in told):
        raise typer.Exit(CHECK_FAILED)


def _tell(chapter: Chapter) -> Told:
    from tilesmith.lab.report.terminal import show_block, show_heading

    show_heading(console, chapter.title, chapter.lead)
    with console.status("") as status:
        told = chapter.tell(lambda doing: status.update(doing))
    for block in told.blocks:
        show_block(console, block)
    return told


def _page(machine: Machine, told: list[tuple[Chapter, Told]], seconds: float) -> str:
    from tilesmith.lab.report.content import Section
    from tilesmith.lab.report.page import render

    return render(
        "tour.html",
        title="A tour on this machine",
        summary="Whether kernels are correct, how they compile, and how fast they are or could be.",
        picture=next((one.picture for _, one in told if one.picture), None),
        headlines=[headline for _, one in told for headline in one.headlines],
        sections=[Section(chapter.title, chapter.lead, one.blocks) for chapter, one in told],
        provenance={
            "Made": time.strftime("%Y-%m-%d %H:%M %Z"),
            "In": f"{seconds:.0f} s",
            "By": f"tilesmith tour, version {__version__}",
            "With": f"PyTorch {machine.torch}, Triton {machine.triton}, Python {machine.python}",
            "On": f"{platform.system()} {platform.machine()}, GPU: {machine.gpu.name if machine.gpu else 'none'}",
        },
    )
