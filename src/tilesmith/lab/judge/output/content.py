"""Verdicts as sections of a report: the terminal and the page show the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilesmith.lab.judge.verdict import STAGES
from tilesmith.lab.report.content import Block, Cell, Column, Facts, Paragraph, Points, Section, Table, Tone
from tilesmith.lab.report.number_format import in_bytes

_TONES: dict[str, Tone] = {"pass": "good", "passed": "good", "fail": "bad", "failed": "bad"}
_MEANING = {
    "loads": "the file can be imported and has the function",
    "runs": "every call returns outputs of the right shape and dtype",
    "honest": "kernels of the candidate compute the outputs from the inputs, in every call",
    "right": "outputs and gradients agree with the definition, on inputs the candidate never saw",
    "safe": "no access out of bounds, no race, nothing uninitialised, inputs unchanged",
    "compiles": "every kernel compiles for the named targets",
    "fast": "times on a GPU",
}

Json = Mapping[str, Any]


def headline(verdict: Json) -> str:
    """Return a verdict in one line."""
    reasons = verdict["reasons"]
    text = f"{verdict['candidate']}: {verdict['outcome']}"
    return f"{text} at {verdict['stage']}: {placed(reasons[0])}" if reasons else text


def placed(reason: Json) -> str:
    """Return a reason with its case and source line."""
    case = ", ".join(one for one in (reason["case"], reason["dtype"], reason["layout"]) if one)
    sizes = ", ".join(f"{name}={size}" for name, size in reason["sizes"].items())
    line = f" ({reason['file']}:{reason['line']})" if reason["file"] and reason["line"] else ""
    line = "" if line in reason["message"] else line
    program = f", program {tuple(reason['program'])}" if reason["program"] else ""
    return f"{f'[{case}; {sizes}] ' if case else ''}{reason['message']}{line}{program}"


def sections(verdict: Json) -> list[Section]:
    """Return the sections of one verdict."""
    found = [Section("Stages", "Each stage needs the ones before it.", [_stages(verdict)])]
    if verdict["reasons"]:
        blocks: list[Block] = []
        for reason in verdict["reasons"]:
            blocks.append(Paragraph(placed(reason)))
            if reason["advice"]:
                blocks.append(Points([reason["advice"]]))
        found.insert(0, Section("Reasons", "What decided the verdict, and what would help.", blocks))
    if verdict["kernels"]:
        case = verdict["facts_case"]
        lead = f"Without a GPU, for the case {case}: counted in the interpreter, compiled, and predicted."
        if case is None:
            lead = "What the CUDA driver says about the compiled kernels."
        found.append(Section("Kernels", lead, [*_kernels(verdict), *_advice(verdict)]))
    if verdict["times"]:
        lead = "On a GPU, on inputs that change before every replay; outputs verified after the clock stopped."
        found.append(Section("Times", lead, [_times(verdict["times"])]))
    found.append(Section("Reward", "A number in [0, 1], the sum of its parts.", [_reward(verdict)]))
    found.append(Section("Protection", "How the candidate's process was confined.", [_protection(verdict)]))
    return found


def series_table(verdicts: Sequence[Json]) -> Table:
    """Return a series of verdicts as a table, best first."""
    columns = [
        Column("candidate"), Column("verdict"), Column("stage"), Column("right", "number"),
        Column("bytes / floor", "number"), Column("µs", "number"), Column("reward", "number"),
        Column("reason", "prose"),
    ]  # fmt: skip
    ordered = sorted(verdicts, key=lambda one: -one["reward"]["value"])
    rows = [
        [
            Cell(one["candidate"]),
            Cell(one["outcome"], _TONES.get(one["outcome"], "plain")),
            Cell(one["stage"]),
            Cell(f"{one['trials_right']}/{one['trials']}"),
            Cell(_ratio(one)),
            Cell(_microseconds(one)),
            Cell(f"{one['reward']['value']:.2f}", share=one["reward"]["value"]),
            Cell(placed(one["reasons"][0]) if one["reasons"] else ""),
        ]
        for one in ordered
    ]
    return Table("Candidates, best first", columns, rows)


def comparison(one: Json, other: Json) -> list[Section]:
    """Return two verdicts side by side."""
    rows = []
    for name, first, second in _compared(one, other):
        rows.append([Cell(name), Cell(first, _TONES.get(first, "plain")), Cell(second, _TONES.get(second, "plain"))])
    columns = [Column(""), Column(_title(one)), Column(_title(other))]
    found = [Section("Side by side", f"On the task {one['task']}.", [Table("Verdicts", columns, rows)])]
    for verdict in (one, other):
        if verdict["reasons"]:
            points = [f"{placed(reason)} {reason['advice']}" for reason in verdict["reasons"]]
            found.append(Section(f"Reasons: {_title(verdict)}", "What decided the verdict.", [Points(points)]))
    return found


def _title(verdict: Json) -> str:
    return f"{verdict['candidate']} ({verdict['digest'][:6]})"


def _compared(one: Json, other: Json) -> list[tuple[str, str, str]]:
    pairs = [("verdict", one["outcome"], other["outcome"])]
    pairs += [(stage, one["stages"][stage], other["stages"][stage]) for stage in STAGES]
    texts: dict[str, Callable[[Json], str]] = {
        "trials right": lambda v: f"{v['trials_right']} of {v['trials']}",
        "bytes / floor": _ratio,
        "launches": lambda v: str(sum(kernel["launches"] for kernel in v["kernels"])) if v["kernels"] else "–",
        "registers": lambda v: _of_targets(v, "registers"),
        "spilled bytes": lambda v: _of_targets(v, "spill_bytes"),
        "µs": _microseconds,
        "reward": lambda v: f"{v['reward']['value']:.2f}",
        "seconds to judge": lambda v: f"{v['seconds']:.1f}",
    }
    return pairs + [(name, text(one), text(other)) for name, text in texts.items()]


def _of_targets(verdict: Json, fact: str) -> str:
    """Return the largest value of a fact over all kernels, for each target."""
    largest: dict[str, int] = {}
    for kernel in verdict["kernels"]:
        for target, facts in kernel.get("targets", {}).items():
            largest[target] = max(largest.get(target, 0), facts[fact] or 0)
    return ", ".join(f"{value} ({target})" for target, value in largest.items()) or "–"


def _ratio(verdict: Json) -> str:
    if not verdict["bytes"] or not verdict["floor_bytes"]:
        return "–"
    return f"{verdict['bytes'] / verdict['floor_bytes']:.2f}"


def _stages(verdict: Json) -> Table:
    rows = [
        [Cell(stage), Cell(state, _TONES.get(state, "plain")), Cell(_MEANING[stage])]
        for stage, state in verdict["stages"].items()
    ]
    return Table("", [Column("stage"), Column("state"), Column("meaning", "prose")], rows)


def _kernels(verdict: Json) -> list[Block]:
    """Return a table for each kernel: what it moves in the caption, a row for each target."""
    columns = [
        Column("target"), Column("registers", "number"), Column("spilled", "number"), Column("occupancy", "number"),
        Column("least µs", "number"),
    ]  # fmt: skip
    tables: list[Block] = []
    for kernel in verdict["kernels"]:
        rows = []
        for target, facts in kernel.get("targets", {}).items():
            occupancy, predicted = facts["occupancy"], facts["predicted_us"]
            rows.append(
                [
                    Cell(target), Cell(str(facts["registers"])), Cell(str(facts["spill_bytes"])),
                    Cell("–" if occupancy is None else f"{occupancy:.0%}"),
                    Cell("–" if predicted is None else f"{predicted:.2g}"),
                ]
            )  # fmt: skip
        tables.append(Table(_moved(kernel), columns, rows))
    return tables


def _moved(kernel: Json) -> str:
    """Return a kernel's launches, bytes and sectors, and what bounds it, in words."""
    count = kernel["launches"]
    words = [f"{kernel['name']}: {count} launch{'' if count == 1 else 'es'}"]
    if "bytes" in kernel:
        words.append(f"{in_bytes(kernel['bytes'])} moved")
    if kernel.get("sectors") is not None:
        words.append(f"{kernel['sectors']:,} sectors ({_number(kernel.get('ideal_sectors'))} ideal)")
    if "bound" in kernel:
        words.append(f"bound by {kernel['bound']}")
    return ", ".join(words)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _advice(verdict: Json) -> list[Block]:
    found = [
        f"{one['message']} ({one['file']}:{one['line']}). {one['advice']}"
        for kernel in verdict["kernels"]
        for one in kernel.get("findings", [])
        if one["severity"] != "info"
    ]
    return [Points(list(dict.fromkeys(found)))] if found else []


def _times(times: Json) -> Facts:
    sizes = ", ".join(f"{name}={size}" for name, size in times["sizes"].items())
    facts = {
        "case": f"{times['case']} ({sizes}), {times['dtype']}, {times['mode']}",
        "device": str(times["device"]),
        "time": f"{times['median_ms'] * 1e3:.1f} µs (spread {times['spread_ms'] * 1e3:.1f} µs)",
        "replays": f"{times['replays']} of {times['sets']} input sets, {times['verified']} verified; {times['method']}",
        "speed-up": "–" if times["speedup"] is None else f"{times['speedup']:.2f} over the definition",
        "share of the limit": "–" if times["share_of_limit"] is None else f"{times['share_of_limit']:.0%}",
    }
    if times["configurations"] > 1:
        facts["configuration"] = f"{times['configuration'] + 1} of {times['configurations']}, the fastest"
    return Facts(facts)


def _microseconds(verdict: Json) -> str:
    return f"{verdict['times']['median_ms'] * 1e3:.1f}" if verdict["times"] else "–"


def _reward(verdict: Json) -> Table:
    parts = [[Cell(name), Cell(f"{part:.3f}")] for name, part in verdict["reward"]["parts"].items()]
    total = [Cell("sum"), Cell(f"{verdict['reward']['value']:.3f}")]
    return Table("", [Column("part"), Column("value", "number")], [*parts, total])


def _protection(verdict: Json) -> Facts:
    missing = ", ".join(verdict["missing_protections"])
    return Facts(
        {
            "active": "; ".join(verdict["protections"]) or "none",
            "missing": missing or "none",
            "seed": str(verdict["seed"]),
            "seconds": f"{verdict['seconds']:.2f}",
        }
    )
