"""The HTML page of `tilesmith inspect`: for each kernel three headline figures, the findings, and nine views.

All text is plain HTML, readable without JavaScript. The page's script draws the pictures of one program from JSON data
inside the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from tilesmith.hardware.devices import for_target
from tilesmith.lab.inspect.findings.evidence import UNCOALESCED
from tilesmith.lab.inspect.model import Finding, Inspection, Kernel, TargetFacts
from tilesmith.lab.inspect.output.page_data import RATINGS, conflicts, embedded, page_data, rating_of
from tilesmith.lab.inspect.output.roofline_chart import roofline
from tilesmith.lab.inspect.output.terminal import (
    access_table,
    bound_in_words,
    configuration_table,
    lead,
    once,
    overall_efficiency,
    precision_table,
    target_table,
    waves_in_words,
)
from tilesmith.lab.report.content import Block, Cell, Column, Headline, Paragraph, Table, Tone
from tilesmith.lab.report.number_format import in_bytes, in_figures, in_time
from tilesmith.lab.report.page import in_notebook, render, template_text

_SCRIPTS = ("drawing.js", "output.js", "access.js", "flow.js", "timeline.js", "play.js", "page.js")
_FROM_BEST_TO_WORST = ("unknown", "coalesced", "reused", "conflict", "uncoalesced")


@dataclass(frozen=True)
class SourceLine:
    """A source line with its share of the cost. `heat` is relative to the most expensive line; `note` is the cost in
    words. `called` marks lines of functions that the kernel calls; `file` is set where they are in another file.
    """

    number: int
    code: str
    share: float
    heat: float
    note: str
    rating: str | None  # the worst rating of the accesses on this line
    called: bool = False
    file: str = ""


@dataclass(frozen=True)
class KernelView:
    """The static part of the page for one kernel."""

    name: str
    label: str  # the name, numbered where several kernels share it
    place: str
    lead: str
    errors: int
    headlines: Sequence[Headline]
    findings: Sequence[FindingView]
    source: Sequence[SourceLine]
    resources: Sequence[Block]
    metrics: Sequence[Block]
    notes: Sequence[str]


@dataclass(frozen=True)
class FindingView:
    """A finding in words. `line` is set where the page shows that line, `program` where the finding names one."""

    severity: str
    kind: str
    place: str
    message: str
    cost: str
    code: str
    advice: str
    line: int | None
    program: str | None


NOTHING = Markup("")


def write_html(inspection: Inspection, preface: Markup = NOTHING) -> str:
    """Return an inspection as one HTML file without external resources. `preface` comes before the kernels."""
    script = "".join(template_text(f"inspect/{name}") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    kernels = len(inspection.kernels)
    return render(
        "inspect/page.html",
        title=f"Kernels of {Path(inspection.script).name}",
        summary=f"{kernels} kernel{'' if kernels == 1 else 's'}, "
        + (f"on {inspection.device}." if inspection.has_gpu else "inspected without a GPU. Times are predicted."),
        sections=[],
        provenance=_provenance(inspection),
        kernels=[
            _view(kernel, label, inspection.sector_bytes)
            for kernel, label in zip(inspection.kernels, _labels(inspection.kernels), strict=True)
        ],
        ratings=RATINGS,
        trouble=inspection.ending.message,
        preface=preface,
        notes=inspection.notes,
        data=embedded(page_data(inspection)),
        script=Markup(script),  # this package's own
        script_digest=digest,
    )


def notebook_html(inspection: Inspection) -> str:
    """Return the page in an iframe, which separates its style and script from the notebook's."""
    return in_notebook(write_html(inspection), "Inspection")


def _view(kernel: Kernel, label: str, sector_bytes: int) -> KernelView:
    return KernelView(
        name=kernel.name,
        label=label,
        place=f"{Path(kernel.file).name}:{kernel.line}",
        lead=lead(kernel),
        errors=len(kernel.errors),
        headlines=list(_headlines(kernel)),
        findings=[_finding(kernel, finding) for finding in once(kernel.findings)],
        source=list(_source(kernel)),
        resources=list(_resources(kernel)),
        metrics=list(_metrics(kernel, sector_bytes)),
        notes=kernel.notes,
    )


def _labels(kernels: Sequence[Kernel]) -> Iterator[str]:
    names = Counter(kernel.name for kernel in kernels)
    seen: Counter[str] = Counter()
    for kernel in kernels:
        seen[kernel.name] += 1
        yield f"{kernel.name} {seen[kernel.name]}" if names[kernel.name] > 1 else kernel.name


def _headlines(kernel: Kernel) -> Iterator[Headline]:
    """Yield the headline figures: efficiency of memory accesses, predicted and measured time, occupancy."""
    used = overall_efficiency(kernel)
    tone: Tone = "plain" if used is None or used >= UNCOALESCED else "bad"
    yield Headline("unknown" if used is None else f"{used:.0%}", "of the moved bytes are used", tone)
    work = f"{in_bytes(kernel.unique_bytes)} to move, {in_figures(kernel.flops)} flops"
    timed = next((one for one in kernel.targets.values() if one.predicted_floor_us is not None), None)
    if timed is not None:
        meaning = f"least time on {timed.device}: {bound_in_words(timed)}, {work}"
        yield Headline(in_time(timed.predicted_floor_us), meaning, origin="predicted")
        if timed.predicted_us is not None:
            meaning = f"time of a launch, limited by {timed.predicted_limit}"
            yield Headline(in_time(timed.predicted_us), meaning, origin="predicted")
    if kernel.measured_us is not None:
        yield Headline(in_time(kernel.measured_us), kernel.measured_note or "", origin="measured")
    filled = next((one for one in kernel.targets.values() if one.occupancy is not None), None)
    if filled is not None:
        waves = "" if filled.waves is None else f"; the grid has {waves_in_words(filled.waves)}"
        yield Headline(
            f"{filled.occupancy:.0%}", f"occupancy on {filled.target}, limited by {filled.limited_by}{waves}"
        )


def _finding(kernel: Kernel, finding: Finding) -> FindingView:
    name = Path(finding.file).name
    cost = f"{in_bytes(finding.cost_bytes)} moved needlessly" if finding.cost_bytes else ""
    if cost and finding.cost_us is not None:
        cost += f", predicted {in_time(finding.cost_us)}"
    return FindingView(
        severity=finding.severity,
        kind=finding.kind,
        place=f"{name}:{finding.line}" if finding.line else name,
        message=finding.message,
        cost=cost,
        code=finding.code,
        advice=finding.advice,
        line=finding.line if finding.file == kernel.file else None,
        program=",".join(map(str, finding.program)) if finding.program else None,
    )


def _source(kernel: Kernel) -> Iterator[SourceLine]:
    costs = {(cost.file, cost.line): cost for cost in kernel.lines}
    ratings: dict[tuple[str, int], str] = {}
    for access in kernel.accesses:
        key, rating = (access.file, access.line), rating_of(kernel, access)
        ratings[key] = max(ratings.get(key, rating), rating, key=_FROM_BEST_TO_WORST.index)
    highest = max((cost.share for cost in costs.values()), default=0.0) or 1.0

    def line(file: str, number: int, code: str, called: bool = False) -> SourceLine:
        cost = costs.pop((file, number), None)
        words = [f"{in_bytes(cost.bytes)}"] if cost and cost.bytes else []
        words += [f"{in_figures(cost.flops)} flops"] if cost and cost.flops else []
        share = cost.share if cost else 0.0
        place = Path(file).name if file != kernel.file else ""
        rating = ratings.get((file, number))
        return SourceLine(number, code, share, share / highest, ", ".join(words), rating, called, place)

    for number, code in enumerate(kernel.source.splitlines(), kernel.line):
        yield line(kernel.file, number, code)
    for cost in list(costs.values()):
        yield line(cost.file, cost.line, cost.code, called=True)


def _resources(kernel: Kernel) -> Iterator[Block]:
    if kernel.targets:
        yield target_table(kernel)
    if kernel.configurations:
        yield configuration_table(kernel)
    compiled = [facts for facts in kernel.targets.values() if not facts.error]
    for facts in kernel.targets.values():
        if facts.error:
            yield Paragraph(f"{facts.target}: {facts.error}")
    if compiled:
        yield _budget_table(compiled)
    touched = [(facts.target, one) for facts in compiled for one in facts.shared_accesses]
    if touched:
        yield Table(
            "Shared memory: wavefronts of each line against the ideal",
            [Column("target"), Column("access"), Column("wavefronts", "number"), Column("ideal", "number")],
            [
                [
                    Cell(target),
                    Cell(f"{one.kind} at {Path(one.file).name}:{one.line}"),
                    Cell(str(one.wavefronts), tone="bad" if one in list(conflicts(kernel)) else "plain"),
                    Cell(str(one.ideal_wavefronts)),
                ]
                for target, one in touched
            ],
        )


def _budget_table(compiled: Sequence[TargetFacts]) -> Table:
    """Return a table of the resources that one program takes from a multiprocessor."""
    headings = ("registers", "shared memory", "programs at once", "stages", "barriers")
    rows = []
    for facts in compiled:
        registers, shared = _shares(facts)
        features = [
            name
            for name, there in (("tensor cores", facts.tensor_cores), ("async copies", facts.async_copies))
            if there
        ]
        rows.append(
            [
                Cell(facts.target),
                Cell("?" if registers is None else f"{registers:.1%}", share=registers),
                Cell("?" if shared is None else f"{shared:.1%}", share=shared),
                Cell("?" if facts.blocks_per_multiprocessor is None else str(facts.blocks_per_multiprocessor)),
                Cell("–" if facts.num_stages is None else str(facts.num_stages)),
                Cell(str(facts.barriers)),
                Cell(", ".join(features) or "–"),
            ]
        )
    return Table(
        "Share of a multiprocessor that one program takes",
        [Column("target"), *(Column(heading, "number") for heading in headings), Column("features")],
        rows,
    )


def _shares(facts: TargetFacts) -> tuple[float | None, float | None]:
    try:
        limits = for_target(facts.target)
    except ValueError:
        return None, None
    threads = facts.num_warps * limits.warp_size
    return facts.registers * threads / limits.registers, facts.shared_bytes / limits.shared_bytes


def _metrics(kernel: Kernel, sector_bytes: int) -> Iterator[Block]:
    if kernel.accesses:
        yield access_table(kernel)
    chart = roofline(kernel, sector_bytes)
    yield chart or Paragraph("No roofline: the kernel does no arithmetic, so only its bytes count.")
    if kernel.precision:
        yield precision_table(kernel)


def _provenance(inspection: Inspection) -> dict[str, str]:
    return {
        "Script": " ".join([inspection.script, *inspection.arguments]),
        "Device": inspection.device + ("" if inspection.has_gpu else ", by its datasheet"),
        "PyTorch": inspection.torch,
        "Triton": inspection.triton,
        "Tilesmith": inspection.tilesmith,
    }
