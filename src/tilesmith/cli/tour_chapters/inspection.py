"""The tour's chapter on `tilesmith inspect`: a script with a slow kernel and its fixed version."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

from tilesmith.cli.tour_chapters.chapter import Chapter, Report, Told
from tilesmith.cli.tour_chapters.lanes_picture import lanes_picture
from tilesmith.lab.inspect.model import AccessFacts, Inspection, Kernel
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.output.page import write_html
from tilesmith.lab.inspect.running.script import inspect_script
from tilesmith.lab.report.content import Cell, Column, Frame, Headline, Listing, Paragraph, Table
from tilesmith.toolchain.compiler import Target

SCRIPT = files("tilesmith.cli.examples").joinpath("column_walk.py")
SLOW, MENDED = "walk_down_kernel", "walk_along_kernel"
TARGET = "cuda:90"


def inspected_chapter() -> Chapter:
    return Chapter(
        "Why is it slow?",
        "An unmodified script launches two kernels, without a GPU. Both double a matrix; one goes down the columns, "
        "and each of its warps fetches many times the bytes that it uses.",
        _inspected,
    )


def _inspected(report: Report) -> Told:
    with as_file(SCRIPT) as path:
        report(f"running {path.name}")
        found = inspect_script(path, (), InspectOptions(targets=(Target.parse(TARGET),)), progress=report)
    kernels = {kernel.name: kernel for kernel in found.kernels}
    if set(kernels) != {SLOW, MENDED}:
        trouble = found.ending.traceback or found.ending.message or "the script launched no kernel"
        return Told((Listing(f"The script could not be inspected: {trouble}", "bad"),), passed=False)
    return _told(found, kernels[SLOW], kernels[MENDED])


def _told(found: Inspection, slow: Kernel, mended: Kernel) -> Told:
    table = Table(
        "Sectors of 32 bytes per load of one warp",
        [
            Column("kernel"), Column("sectors", "number"), Column("at best", "number"),
            Column("bytes used of those moved", "number"),
        ],
        [_row(slow, "bad"), _row(mended, "good")],
    )  # fmt: skip
    named = [one for one in slow.findings if one.kind == "uncoalesced"]
    clean = not any(one.kind == "uncoalesced" for one in mended.findings)
    json = {"inspect": {kernel.name: _facts(kernel) for kernel in (slow, mended)}}
    if not named or not clean:
        missed = Paragraph("Inspect judged the two kernels wrongly. This is a bug in Tilesmith: please report it.")
        return Told((table, missed), json, (Headline("missed", "a kernel that wastes what it fetches", "bad"),), False)
    worst = named[0]
    said = Listing(f"{SCRIPT.name}:{worst.line}  {worst.code.strip()}\n{worst.message}\n{worst.advice}", "bad")
    picture = Frame(
        "The inspection: choose a kernel and a program, point at an access",
        write_html(found),
        "The page shows which program accesses which element, lane by lane.",
    )
    wasted = Headline(
        f"{_used(slow):.1%}", f"of the bytes that {SLOW} fetches are used; {_used(mended):.0%} in the fixed kernel"
    )
    opening = lanes_picture(slow, mended, found.sector_bytes)
    return Told((table, said, picture), json, (wasted,), picture=opening)


def _load(kernel: Kernel) -> AccessFacts:
    return next(access for access in kernel.accesses if access.kind == "load")


def _used(kernel: Kernel) -> float:
    return _load(kernel).efficiency or 0.0


def _row(kernel: Kernel, tone: Any) -> list[Cell]:
    load = _load(kernel)
    return [
        Cell(kernel.name),
        Cell(f"{load.sectors_per_request:g}", tone),
        Cell(f"{load.ideal_sectors_per_request:g}"),
        Cell(f"{_used(kernel):.1%}", tone, share=_used(kernel)),
    ]


def _facts(kernel: Kernel) -> dict[str, Any]:
    load = _load(kernel)
    return {
        "sectors_per_request": load.sectors_per_request,
        "ideal_sectors_per_request": load.ideal_sectors_per_request,
        "efficiency": load.efficiency,
        "findings": [one.kind for one in kernel.findings],
    }
