"""The tour's chapter on models: Tiny LLaMA, trained until its loss falls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tilesmith.cli.tour_chapters import hugging_face
from tilesmith.cli.tour_chapters.chapter import Chapter, Report, Told
from tilesmith.lab.report.content import Cell, Column, Facts, Headline, Paragraph, Table, Tone
from tilesmith.lab.report.number_format import duration, memory
from tilesmith.training.data.tasks import LlamaTask
from tilesmith.training.results.report import AVERAGED, final_loss, loss_curves
from tilesmith.training.running.distributed import alone
from tilesmith.training.running.run import Record, Run, Settings

SIZES = {"hidden_dim": 128, "num_layers": 2, "num_heads": 4, "seq_len": 64}
SETTINGS = Settings(variant="v4", batch_size=16, num_steps=120, learning_rate=3e-3)
TIMED_SIZES: dict[str, int] = {}  # those of `tilesmith train llama`: 512 wide, 8 layers
TIMED_SETTINGS = Settings(batch_size=8, num_steps=40)
LEAST_FALL = 1.0
"""The loss must fall by at least this much; learning the token frequencies alone is worth 2."""


def trained_chapter() -> Chapter:
    return Chapter(
        "Does it learn?",
        "Tiny LLaMA on Tilesmith's operators trains on tokens of known entropy, so the best possible loss is known. A "
        "kernel without a gradient would make training fast and the loss curve flat.",
        _trained,
    )


def _trained(report: Report) -> Told:
    run = Run(LlamaTask(SIZES), SETTINGS, alone())

    def tell(record: Record) -> None:
        report(f"step {len(record.losses)} of {SETTINGS.num_steps}, loss {record.losses[-1]:.2f}")

    try:
        run.train(tell)
    finally:
        run.close()
    result = run.result({})
    first, last, best = result["losses"][0], final_loss(result), result["best_loss"]
    learned = first - last >= LEAST_FALL
    facts = Facts(
        {
            "Version": f"v4: {run.about}",
            "Parameters": f"{result['parameters']:,}",
            "Loss": f"{first:.2f} at first, {last:.2f} over the last {AVERAGED} of {SETTINGS.num_steps} steps, "
            f"{best:.2f} at best",
            "Computed by": "our kernels" if run.place.device.type == "cuda" else "PyTorch; this machine has no GPU",
        }
    )
    curve = loss_curves([result], f"Loss of {SETTINGS.num_steps} steps")
    more = Paragraph("tilesmith train llama trains for longer; tilesmith compare llama compares v1 to v4.")
    headline = Headline(f"{first:.1f} → {last:.1f}", "loss of a tiny LLaMA in training", "good" if learned else "bad")
    timed = _measured(report) if run.place.device.type == "cuda" else Told(())
    found = {"train": result, **timed.findings}
    return Told((facts, curve, *timed.blocks, more), found, (headline, *timed.headlines), passed=learned)


def _measured(report: Report) -> Told:
    """Return the step time of a whole Llama, or of Tiny LLaMA where transformers or memory is missing."""
    if hugging_face.can_be_timed():
        try:
            return hugging_face.llama_beside_transformers(report)
        except torch.OutOfMemoryError:  # other programs may use the GPU
            pass
    return beside_pytorch(report)


def beside_pytorch(report: Report) -> Told:
    """Return the measured time of a training step of Tiny LLaMA: Tilesmith's version beside plain PyTorch."""
    results = {name: _timed(name, report) for name in ("v1", "v4")}
    plain, ours = (results[name]["step_ms"] for name in ("v1", "v4"))
    table = Table(
        "A training step of Tiny LLaMA on this machine",
        [Column("version"), Column("step", "number"), Column("peak memory", "number")],
        [
            [Cell(f"{name}: {one['about']}"), Cell(duration(one["step_ms"])), Cell(memory(one["peak_bytes"]))]
            for name, one in results.items()
        ],
        origin="measured",
    )
    tone: Tone = "good" if ours < plain else "bad"
    headline = Headline(
        f"{duration(plain)} → {duration(ours)}", "training step of Tiny LLaMA, PyTorch → Tilesmith", tone, "measured"
    )
    return Told((table,), {"steps": list(results.values())}, (headline,))


def _timed(variant: str, report: Report) -> dict[str, Any]:
    report(f"timing Tiny LLaMA {variant}")
    run = Run(LlamaTask(TIMED_SIZES), replace(TIMED_SETTINGS, variant=variant), alone())
    try:
        run.train(lambda record: None)
        return run.result({})
    finally:
        run.close()
