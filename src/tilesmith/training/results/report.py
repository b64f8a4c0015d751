"""Reports of training runs: the summary of one run, and a comparison of several, for the terminal and as HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilesmith.lab.report.content import (
    Axis,
    Block,
    Ceiling,
    Cell,
    Chart,
    Charts,
    Column,
    Facts,
    Headline,
    Mark,
    Paragraph,
    Points,
    Section,
    Series,
    Table,
)
from tilesmith.lab.report.number_format import duration, figure, memory
from tilesmith.lab.report.page import render

Result = Mapping[str, Any]

TITLES = {"llama": "Tiny LLaMA", "openfold": "Tiny OpenFold"}
MOST_MARKS = 20
AVERAGED = 10
"""The final loss is the mean of this many last steps: single batches differ more than versions do."""

# Name, key, formatter, and whether more is better.
_FIGURES: tuple[tuple[str, str, Callable[[float | None], str], bool], ...] = (
    ("Training speed, samples/s", "samples_per_s", figure, True),
    ("Batch", "step_ms", duration, False),
    ("Forward", "forward_ms", duration, False),
    ("Backward", "backward_ms", duration, False),
    ("Optimiser", "optimizer_ms", duration, False),
    ("Peak memory", "peak_bytes", memory, False),
    ("Throughput, tokens/s", "tokens_per_s", figure, True),
)


def summary(result: Result) -> list[Block]:
    """Return the main figures of one run."""
    facts = {name: text(result[key]) for name, key, text, _ in _FIGURES if result[key] is not None}
    return [Facts({**facts, "Loss": _loss_line(result), "Parameters": f"{result['parameters']:,}"})]


def _loss_line(result: Result) -> str:
    best = result["best_loss"]
    known = f", best possible {best:.3f}" if best is not None else ", best possible unknown"
    return f"{result['losses'][0]:.3f} → {final_loss(result):.3f}{known}" if result["losses"] else "no step was run"


def final_loss(result: Result) -> float:
    """Return the mean loss of the last `AVERAGED` steps."""
    last = result["losses"][-AVERAGED:]
    return float(sum(last) / len(last))


def comparison(compared: Result) -> list[Block]:
    """Return the comparison of versions: first their parity, then their times and memory."""
    return [parity_table(compared), *_refusals(compared), *figures_table(compared), *_about_cpu(compared)]


def _about_cpu(compared: Result) -> list[Block]:
    if compared["device"] is not None:
        return []
    return [Paragraph("Without a GPU PyTorch computes the operators of v3 and v4; these times are not ours.")]


def parity_table(compared: Result) -> Table:
    return Table(
        "Same parameters and batch: error against v1 in float64, and the allowed error",
        [
            Column("version"), Column("verdict"), Column("logits", "number"), Column("worst gradient", "number"),
            Column("parameter"),
        ],
        [
            [
                Cell(one["variant"]),
                Cell("same", "good") if one["passed"] else Cell("differs", "bad"),
                Cell(f"{one['logits_error']:.1e} of {one['logits_allowed']:.1e}"),
                Cell(f"{one['worst_gradient_error']:.1e} of {one['worst_gradient_allowed']:.1e}"),
                Cell(one["worst_gradient"]),
            ]
            for one in compared["parity"]
        ],
    )  # fmt: skip


def _refusals(compared: Result) -> list[Block]:
    wrong = [one for one in compared["parity"] if not one["passed"]]
    if not wrong:
        return []
    reason = "{variant} was not timed: it does not compute the same as v1. {difference}"
    return [Points([reason.format(**one).strip() for one in wrong])]


def figures_table(compared: Result) -> list[Block]:
    """Return a table with a row for each figure and a column for each version."""
    runs = compared["variants"]
    if not runs:
        return []
    first, last = runs[0], runs[-1]
    lines = [
        [
            Cell(name),
            *(Cell(text(run[key])) for run in runs),
            Cell(_improvement(first[key], last[key], more_is_better)),
        ]
        for name, key, text, more_is_better in _FIGURES
        if any(run[key] is not None for run in runs)
    ]
    losses = [
        Cell("Final loss"), *(Cell(f"{final_loss(run):.4f}") for run in runs), Cell(f"best possible {_best(first)}")
    ]  # fmt: skip
    graphs = [Cell("As one CUDA graph"), *(Cell(_captured(run)) for run in runs), Cell("")]
    drift = [Cell("Largest difference from v1's losses"), *(Cell(_drift(first, run)) for run in runs), Cell("")]
    columns = [Column(""), *(Column(run["variant"], "number") for run in runs)]
    against = Column(f"{last['variant']} against {first['variant']}", "number")
    steps = len(first["losses"])
    return [
        Table(
            f"{TITLES[compared['model']]}, {steps} steps, {_size(first)}",
            [*columns, against],
            [*lines, *([graphs] if any(cell.text for cell in graphs[1:]) else []), losses, drift],
        )
    ]


def _captured(run: Result) -> str:
    return {"passes": "forward, backward", "step": "the whole step"}.get(run["captured"], "")


def bars_table(compared: Result) -> list[Block]:
    """Return the times and bytes as bars, relative to the largest of their column."""
    runs = compared["variants"]
    shown = [one for one in _FIGURES if not one[3] and any(run[one[1]] is not None for run in runs)]
    lines = [
        [
            Cell(run["variant"]),
            *(Cell(text(run[key]), share=_share(run[key], [one[key] for one in runs])) for _, key, text, _ in shown),
        ]
        for run in runs
    ]
    return [Table("Less is better", [Column("version"), *(Column(name, "number") for name, *_ in shown)], lines)]


def _size(run: Result) -> str:
    config = run["config"]
    return f"batch {config['batch_size']}, {run['parameters']:,} parameters, {config['dtype']}"


def _share(value: float | None, all_values: Sequence[float | None]) -> float | None:
    known = [one for one in all_values if one]
    return value / max(known) if value and known else None


def _improvement(before: float | None, after: float | None, more_is_better: bool) -> str:
    if not before or not after:
        return "–"
    ratio = after / before if more_is_better else before / after
    return f"{ratio:.2f} × better" if ratio >= 1 else f"{1 / ratio:.2f} × worse"


def _best(run: Result) -> str:
    return "unknown" if run["best_loss"] is None else f"{run['best_loss']:.4f}"


def _drift(first: Result, run: Result) -> str:
    together = zip(first["losses"], run["losses"], strict=False)
    return f"{max((abs(one - other) for one, other in together), default=0.0):.1e}"


def loss_curves(runs: Sequence[Result], title: str, quantity: str = "loss") -> Charts:
    """Return a chart of the losses, with a line for each version and one for the best possible loss."""
    losses = [loss for run in runs for loss in run["losses"] if math.isfinite(loss)] or [0.0]
    best = runs[0]["best_loss"]
    steps = max(len(run["losses"]) for run in runs)
    low = min([*losses, *([best] if best is not None else [])])
    margin = 0.05 * ((max(losses) - low) or 1.0)
    x = Axis("step", 0, steps + 1, [(tick, f"{tick:g}") for tick in _ticks(0, steps)])
    y_range = low - margin, max(losses) + margin
    y = Axis(quantity, *y_range, [(tick, f"{tick:g}") for tick in _ticks(*y_range)])
    ceilings = (
        [] if best is None else [Ceiling(f"best possible {best:.3f}", [(0, best), (x.high, best)], (x.high, best))]
    )
    series = [Series(style, _marks(run), _finite(run)) for style, run in enumerate(runs)]
    return Charts([run["variant"] for run in runs], [Chart(title, x, y, ceilings, series, _loss_table(title, runs))])


def _finite(run: Result) -> list[tuple[float, float]]:
    return [(step, loss) for step, loss in enumerate(run["losses"], 1) if math.isfinite(loss)]


def _marks(run: Result) -> list[Mark]:
    count = len(run["losses"])
    every = max(1, -(-count // MOST_MARKS))
    places = [*range(0, count, every), *([count - 1] if (count - 1) % every else [])]
    return [
        Mark(place + 1, run["losses"][place], f"{run['variant']}, step {place + 1}", [f"{run['losses'][place]:.4f}"])
        for place in places
        if math.isfinite(run["losses"][place])
    ]


def _loss_table(title: str, runs: Sequence[Result]) -> Table:
    steps = sorted({int(mark.x) for run in runs for mark in _marks(run)})
    return Table(
        title,
        [Column("step"), *(Column(run["variant"], "number") for run in runs)],
        [[Cell(str(step)), *(Cell(_loss_at(run, step)) for run in runs)] for step in steps],
    )


def _loss_at(run: Result, step: int) -> str:
    return f"{run['losses'][step - 1]:.4f}" if step <= len(run["losses"]) else "–"


def _ticks(low: float, high: float) -> list[float]:
    """Return four to nine round numbers between low and high."""
    rough = (high - low) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
    return [count * step for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def run_page(result: Result) -> str:
    return render(
        "bench.html",
        title=f"{TITLES[result['model']]} {result['variant']} on {result.get('device') or 'this CPU'}",
        summary=f"A training run: {result['about']}.",
        headlines=[Headline(f"{final_loss(result):.3f}", "final loss")] if result["losses"] else [],
        sections=[
            Section("Cost", "Whole steps were timed during the run, and their phases after it.", summary(result)),
            *([_learning([result])] if result["losses"] else []),
        ],
        provenance=provenance(result),
    )


def _learning(runs: Sequence[Result]) -> Section:
    return Section(
        "Does it learn?" if len(runs) == 1 else "Do they learn?",
        "The best possible loss is the entropy of the data: no model can go below it."
        if runs[0]["best_loss"] is not None
        else "The best possible loss of this data is not known.",
        [loss_curves(runs, "Loss of each step")],
    )


def comparison_page(compared: Result) -> str:
    runs = compared["variants"]
    sections = [
        Section(
            "Do the versions compute the same?",
            "A version is timed only if its predictions and gradients match those of v1.",
            [parity_table(compared), *_refusals(compared)],
        )
    ]
    if runs:
        sections += [
            Section(
                "What does each cost?",
                "Whole steps are timed during the run, without waiting for the device. Phases are timed after the run, "
                "with an idle device before and after each. Peak memory is the allocator's peak over the run.",
                [*_about_cpu(compared), *bars_table(compared), *figures_table(compared), _versions(compared)],
            ),
            _learning(runs),
        ]
    return render(
        "bench.html",
        title=f"{TITLES[compared['model']]} in {len(runs)} versions on {compared.get('device') or 'this CPU'}",
        summary="The same model with other parts: same parameters, gradients and losses, but another speed.",
        headlines=_headlines(compared),
        sections=sections,
        provenance=provenance(compared),
    )


def _versions(compared: Result) -> Table:
    rows = [[Cell(run["variant"]), Cell(run["about"])] for run in compared["variants"]]
    return Table("The versions", [Column("version"), Column("computes with", "prose")], rows)


def _headlines(compared: Result) -> list[Headline]:
    runs = compared["variants"]
    if compared["device"] is None or len(runs) < 2 or not runs[0]["step_ms"] or not runs[-1]["step_ms"]:
        return []
    first, last = runs[0], runs[-1]
    ratio = first["step_ms"] / last["step_ms"]
    found = [
        Headline(
            f"{max(ratio, 1 / ratio):.2f} × {'faster' if ratio >= 1 else 'slower'}",
            f"{last['variant']} than {first['variant']}: {duration(last['step_ms'])} a step",
            "good" if ratio >= 1 else "bad",
        ),
        Headline(
            f"{final_loss(last):.3f}", f"final loss of {last['variant']}; {first['variant']} {final_loss(first):.3f}"
        ),
    ]
    if first["peak_bytes"] and last["peak_bytes"]:
        found.append(
            Headline(memory(last["peak_bytes"]), f"peak memory; {first['variant']} {memory(first['peak_bytes'])}")
        )
    return found


def provenance(result: Result) -> dict[str, str]:
    names = {
        "Device": "device", "Driver": "driver", "PyTorch": "torch", "Triton": "triton", "Tilesmith": "tilesmith",
        "Commit": "commit", "Measured": "date",
    }  # fmt: skip
    return {title: str(result.get(key) or "none") for title, key in names.items()}
