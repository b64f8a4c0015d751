"""A proof for the terminal and as an HTML page: the verdict, the differences, and the curves of all runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilesmith.lab.report.content import Block, Cell, Column, Facts, Headline, Points, Section, Table
from tilesmith.lab.report.number_format import duration, memory
from tilesmith.lab.report.page import render
from tilesmith.training.results.report import loss_curves, provenance

Proof = Mapping[str, Any]


def blocks(proof: Proof) -> list[Block]:
    """Return the proof for the terminal."""
    return [*_conditions(proof), _differences(proof), _runs(proof), Points([verdict(proof)])]


def verdict(proof: Proof) -> str:
    """Return the verdict in one sentence."""
    wrong = [one for one in proof["differences"] if not one["passed"]]
    if not wrong:
        return "The difference is rounding: another rounding of the unpatched model differs as much."
    most = max(wrong, key=lambda one: one["patched"] / one["allowed"])
    if most["patched"] == math.inf:
        return f"The difference is more than rounding: {most['where']} has a gradient in one of the runs only."
    worst = "{what} ({where}) differs by {patched:.1e}, and rounding explains {allowed:.1e}".format(**most)
    return f"The difference is more than rounding: {worst}."


def _conditions(proof: Proof) -> list[Block]:
    settings, patched = proof["settings"], proof["patch"]
    facts = {
        "Model": f"{proof['model']} ({proof['family']}), {proof['parameters']:,} parameters, {settings['dtype']}",
        "Training": f"{settings['steps']} steps of {settings['batch_size']} × {settings['seq_len']} tokens, AdamW, "
        f"learning rate {settings['learning_rate']:g}, seed {settings['seed']}",
        "By Tilesmith": ", ".join(f"{name} ({count})" for name, count in patched["swapped"].items()),
    }
    if patched["left"]:
        facts["By transformers"] = "; ".join(f"{name}: {reason}" for name, reason in patched["left"].items())
    return [Facts(facts)]


def _differences(proof: Proof) -> Table:
    return Table(
        "Difference from the unpatched run, relative to it",
        [
            Column("of"), Column("where"), Column("patched", "number"), Column("other rounding", "number"),
            Column("allowed", "number"), Column("verdict"),
        ],
        [
            [
                Cell(one["what"]),
                Cell(one["where"]),
                *(Cell(f"{one[key]:.1e}") for key in ("patched", "other_rounding", "allowed")),
                Cell("rounding", "good") if one["passed"] else Cell("more than rounding", "bad"),
            ]
            for one in proof["differences"]
        ],
    )  # fmt: skip


def _runs(proof: Proof) -> Table:
    return Table(
        "The runs",
        [
            Column("run"), Column("first loss", "number"), Column("last loss", "number"), Column("step", "number"),
            Column("peak memory", "number"),
        ],
        [
            [
                Cell(run["name"]),
                Cell(f"{run['losses'][0]:.5f}"),
                Cell(f"{run['losses'][-1]:.5f}"),
                Cell(duration(run["step_ms"])),
                Cell(memory(run["peak_bytes"]) if run["peak_bytes"] else "–"),
            ]
            for run in proof["runs"]
        ],
        origin="measured",
    )  # fmt: skip


def proof_page(proof: Proof) -> str:
    """Return the HTML page with the curves of loss and gradient norm."""
    runs = [{**run, "variant": run["name"], "best_loss": None} for run in proof["runs"]]
    norms = [{**run, "losses": run["gradient_norms"]} for run in runs]
    return render(
        "bench.html",
        title=f"{proof['model']}, patched and not, on {proof.get('device') or 'this CPU'}",
        summary="The same weights and data: losses and gradient norms of a patched and an unpatched model.",
        headlines=[
            Headline(
                "rounding" if proof["is_rounding"] else "more than rounding",
                "what the patched run differs by",
                "good" if proof["is_rounding"] else "bad",
            )
        ],
        sections=[
            Section("Does it train the same?", verdict(proof), [_differences(proof), *_conditions(proof)]),
            Section(
                "The curves", "Equal curves cover each other.",
                [loss_curves(runs, "Loss of each step"), loss_curves(norms, "Gradient norm of each step", "norm")],
            ),
            Section("What did the runs cost?", "Steps of a user's loop, with the host's time in them.", [_runs(proof)]),
        ],
        provenance=provenance(proof),
    )  # fmt: skip
