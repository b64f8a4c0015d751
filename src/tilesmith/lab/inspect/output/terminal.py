"""The text report: for each kernel three headline figures, the findings, then tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tilesmith.lab.inspect.model import AccessFacts, ConfigurationFacts, Finding, Inspection, Kernel, TargetFacts
from tilesmith.lab.report.content import Block, Cell, Column, Facts, Listing, Paragraph, Table
from tilesmith.lab.report.number_format import in_bytes, in_figures, in_time, lines_in_words
from tilesmith.lab.report.terminal import show_block, show_heading

MOST_FINDINGS = 12
_SUMMARY_WIDTH = 100
_EXACT = 10_000  # larger counts are shown with a prefix


def show(console: Console, inspection: Inspection) -> None:
    """Print the report of all kernels."""
    for kernel in inspection.kernels:
        show_heading(console, f"{kernel.name}  {Path(kernel.file).name}:{kernel.line}", lead(kernel))
        for block in blocks(kernel):
            show_block(console, block)
    for note in inspection.notes:
        show_block(console, Paragraph(note))


def summary(inspection: Inspection) -> str:
    """Return the kernels and their findings as plain text, without the tables of `show`."""
    parts = []
    for kernel in inspection.kernels:
        used, filled = overall_efficiency(kernel), _filled(kernel)
        facts = [] if used is None else [f"{used:.0%} of the moved bytes are used"]
        facts += [f"{filled.occupancy:.0%} occupancy on {filled.target}"] if filled else []
        spilling = [one.target for one in kernel.targets.values() if one.spill_bytes]
        facts += [f"register spills on {' and '.join(spilling)}" if spilling else "no register spills"]
        heading = f"{kernel.name}  {Path(kernel.file).name}:{kernel.line}"
        parts.append("\n".join([heading, lead(kernel), ", ".join(facts), *_urgent(kernel)]))
    trouble = [f"{inspection.script}: {inspection.ending.message}"] if inspection.ending.message else []
    return "\n\n".join([*parts, *trouble]) or f"{inspection.script} launched no Triton kernel"


def _urgent(kernel: Kernel) -> Iterator[str]:
    """Yield the findings that need a change, and how many do not."""
    found = once(kernel.findings)
    for finding in found:
        if finding.severity != "info":
            message, *more = _sentence(finding).split("\n")
            yield from textwrap.wrap(message, _SUMMARY_WIDTH, subsequent_indent="  ")
            yield from more
    notes = sum(finding.severity == "info" for finding in found)
    if notes:
        yield f"{notes} note{'' if notes == 1 else 's'} more in .report()"


def _filled(kernel: Kernel) -> TargetFacts | None:
    """Return the first target whose occupancy is known."""
    return next((one for one in kernel.targets.values() if one.occupancy is not None), None)


def blocks(kernel: Kernel) -> Iterator[Block]:
    """Yield the parts of a kernel's report."""
    yield Facts(dict(headlines(kernel)))
    yield from _findings(kernel)
    if kernel.accesses:
        yield access_table(kernel)
    if not all(one.error for one in kernel.targets.values()):
        yield target_table(kernel)
    if kernel.configurations:
        yield configuration_table(kernel)
    if kernel.precision:
        yield precision_table(kernel)
    if kernel.notes:
        yield Paragraph(" ".join(kernel.notes))


def headlines(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """Yield the headline figures: efficiency of memory accesses, predicted time, occupancy."""
    efficiency = overall_efficiency(kernel)
    yield "moved bytes used", "unknown" if efficiency is None else f"{efficiency:.0%}"
    facts = next((one for one in kernel.targets.values() if one.predicted_floor_us is not None), None)
    intensity = kernel.arithmetic_intensity
    work = f"{in_bytes(kernel.unique_bytes)} to move, {in_figures(kernel.flops)} flops"
    ratio = f", {intensity:.2g} flops per byte" if intensity is not None else ""
    if facts is not None:
        floor = f"{in_time(facts.predicted_floor_us)} on {facts.device}"
        yield "predicted least time", f"{floor}: {bound_in_words(facts)} ({work}{ratio})"
        if facts.predicted_us is not None:
            yield "predicted time", f"about {in_time(facts.predicted_us)}, limited by {facts.predicted_limit}"
    else:
        yield "work", f"{work}{ratio}"
    if kernel.measured_note:
        yield "measured", kernel.measured_note
    first = _filled(kernel)
    if first is not None:
        waves = "" if first.waves is None else f"; the grid has {waves_in_words(first.waves)}"
        yield "occupancy", f"{first.occupancy:.0%} on {first.target}, limited by {first.limited_by}{waves}"


def bound_in_words(facts: TargetFacts) -> str:
    """Return what sets the predicted time: memory, or arithmetic with its rates."""
    if facts.predicted_floor_us == facts.predicted_memory_us:
        return "memory-bound"
    rates = " and ".join(f"{name} at {rate:.3g}" for name, rate in facts.predicted_rates.items())
    return f"compute-bound by {rates} TFLOP/s"


def waves_in_words(waves: float) -> str:
    """Return how often a grid fills the GPU."""
    return f"{waves:.2g} waves" if waves < 100 else f"{in_figures(waves)} waves"


def overall_efficiency(kernel: Kernel) -> float | None:
    """Return the share of the moved bytes that is used, over all accesses."""
    used = moved = 0.0
    for one in kernel.accesses:
        if one.efficiency:
            ideal = (one.requests or 0) * (one.ideal_sectors_per_request or 0.0)
            used += ideal
            moved += ideal / one.efficiency
    return used / moved if moved else None


def lead(kernel: Kernel) -> str:
    """Return one line: launches, grid, traced programs and constants."""
    times = "launch" if kernel.launches == 1 else "launches"
    constants = ", ".join(f"{name}={value}" for name, value in kernel.constants.items())
    grid = " × ".join(str(size) for size in kernel.grid)
    return f"{kernel.launches} {times}, grid {grid}, {kernel.sampled} traced" + (f"; {constants}" if constants else "")


def _findings(kernel: Kernel) -> Iterator[Block]:
    found = once(kernel.findings)
    for finding in found[:MOST_FINDINGS]:
        yield Listing(_sentence(finding), tone="bad" if finding.severity == "error" else "plain")
    left = len(found) - MOST_FINDINGS
    if left > 0:
        yield Paragraph(f"… and {left} more; --json FILE writes all of them")


def once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; each once; the first of several lines or targets names the others.

    Findings are sorted by severity and cost, so the first is the gravest.
    """
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        message = finding.message.replace(finding.target or "", "")
        alike.setdefault((finding.kind, finding.file, message, finding.advice), []).append(finding)
    return [_in_one(same) for same in alike.values()]


def _in_one(same: Sequence[Finding]) -> Finding:
    first = same[0]
    lines = sorted({one.line for one in same if one.line} - {first.line})
    targets = dict.fromkeys(one.target for one in same if one.target and one.target != first.target)
    places = [f"in {lines_in_words(lines)}"] if lines else []
    places += [f"on {' and '.join(targets)}"] if targets else []
    if not places:
        return first
    counted = [one for one in same if one.target == first.target]
    times = [one.cost_us for one in counted if one.cost_us is not None]
    return replace(
        first,
        message=f"{first.message}; the same {' and '.join(places)}",
        cost_bytes=sum(one.cost_bytes for one in counted),
        cost_us=sum(times) if times else None,
    )


def _sentence(finding: Finding) -> str:
    place = f"{Path(finding.file).name}:{finding.line}" if finding.line else Path(finding.file).name
    cost = f" [{in_bytes(finding.cost_bytes)}" if finding.cost_bytes else ""
    if cost:
        cost += f", predicted {in_time(finding.cost_us)}]" if finding.cost_us is not None else "]"
    code = f"\n    {finding.code}" if finding.code else ""
    return f"{finding.severity}: {finding.kind} at {place}: {finding.message}{cost}{code}\n    → {finding.advice}"


def access_table(kernel: Kernel) -> Table:
    """Return a table with one row per access in the source."""
    headings = ("line", "access", "argument", "bytes", "times", "sectors", "ideal", "used", "width", "masked")
    return Table(
        "Memory accesses of all programs: bytes, accesses per element, sectors per request",
        [Column(text, "text" if text in ("access", "argument") else "number") for text in headings],
        [_access_row(access) for access in kernel.accesses],
    )


def _access_row(access: AccessFacts) -> list[Cell]:
    used, times = access.efficiency, access.accesses_per_element
    return [
        Cell(str(access.line)),
        Cell(access.kind + (" (async)" if access.pipelined else "")),
        Cell(access.argument or "?"),
        Cell(in_bytes(access.bytes)),
        Cell(f"{times:.4g}×" if times < _EXACT else f"{in_figures(times)}×"),
        Cell(_optional(access.sectors_per_request, "{:.1f}")),
        Cell(_optional(access.ideal_sectors_per_request, "{:.1f}")),
        Cell(_optional(used, "{:.1%}"), tone="bad" if used is not None and used < 0.5 else "plain", share=used),
        Cell(_optional(access.vector_bytes, "{} B")),
        Cell(f"{access.masked_fraction:.0%}"),
    ]


def configuration_table(kernel: Kernel) -> Table:
    """Return a table with one row per configuration of the autotuner."""
    measured = any(one.measured_us is not None for one in kernel.configurations)
    headings = ["configuration", "registers", "spilled", "shared", "occupancy", "programs", "least time"]
    headings += ["measured"] if measured else []
    target = kernel.configurations[0].facts.target
    return Table(
        f"Configurations of the autotuner on {target}: * is the one taken here; least times are predicted",
        [Column(text, "text" if text == "configuration" else "number") for text in headings]
        + [Column("cannot win because it", "text")],
        [_configuration_row(one, measured) for one in kernel.configurations],
    )


def _configuration_row(one: ConfigurationFacts, measured: bool) -> list[Cell]:
    facts = one.facts
    values = ", ".join(f"{name}={value}" for name, value in one.values.items())
    name = Cell(f"{one.number}{'*' if one.chosen else ''}: {values}", tone="good" if one.chosen else "plain")
    reason = Cell(one.cannot_win or "", tone="bad" if one.cannot_win else "plain")
    if facts.error:
        return [name, *[Cell("")] * (7 if measured else 6), reason]
    return [
        name,
        Cell(str(facts.registers)),
        Cell(in_bytes(facts.spill_bytes), tone="bad" if facts.spill_bytes else "plain"),
        Cell(in_bytes(facts.shared_bytes)),
        Cell(_optional(facts.occupancy, "{:.0%}"), share=facts.occupancy),
        Cell(f"{one.programs:,}"),
        Cell("?" if one.predicted_us is None else in_time(one.predicted_us)),
        *([Cell("?" if one.measured_us is None else in_time(one.measured_us))] if measured else []),
        reason,
    ]


def precision_table(kernel: Kernel) -> Table:
    """Return a table with the error of each source line beside float64."""
    headings = ("line", "format", "error, ulp", "added, ulp", "code")
    worst = max(one.introduced_ulp for one in kernel.precision)
    return Table(
        "Error beside float64, relative to the largest number of a block: of the results of a line, and added by it",
        [Column(text, "text" if text in ("format", "code") else "number") for text in headings],
        [
            [
                Cell(str(one.line)),
                Cell(one.format),
                Cell(f"{one.ulp:.3g}"),
                Cell(f"{one.introduced_ulp:.3g}", tone="bad" if one.introduced_ulp == worst else "plain"),
                Cell(one.code),
            ]
            for one in kernel.precision
        ],
    )


def target_table(kernel: Kernel) -> Table:
    """Return a table with one row per target."""
    headings = ("target", "registers", "spilled", "shared", "warps", "occupancy", "limited by", "least time")
    bounds = [f"{one.target} {bound_in_words(one)}" for one in kernel.targets.values() if one.predicted_floor_us]
    return Table(
        "Compiled kernel: bytes spilled per thread, shared memory per program, occupancy, predicted least time"
        + (f" ({'; '.join(bounds)})" if bounds else ""),
        [Column(text, "text" if text in ("target", "limited by") else "number") for text in headings],
        [_target_row(facts) for facts in kernel.targets.values()],
    )


def _target_row(facts: TargetFacts) -> list[Cell]:
    if facts.error:
        return [Cell(facts.target), *[Cell("–")] * 5, Cell("does not compile", tone="bad"), Cell("–")]
    return [
        Cell(facts.target),
        Cell(str(facts.registers)),
        Cell(in_bytes(facts.spill_bytes), tone="bad" if facts.spill_bytes else "plain"),
        Cell(in_bytes(facts.shared_bytes)),
        Cell(str(facts.num_warps)),
        Cell(_optional(facts.occupancy, "{:.0%}"), share=facts.occupancy),
        Cell(facts.limited_by or "?"),
        Cell(in_time(facts.predicted_floor_us)),
    ]


def _optional(value: float | None, form: str) -> str:
    return "?" if value is None else form.format(value)
