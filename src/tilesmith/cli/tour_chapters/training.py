"""The tour's chapter on models: Tiny LLaMA, trained until its loss falls."""

from __future__ import annotations

from tilesmith.cli.tour_chapters.chapter import Chapter, Report, Told
from tilesmith.lab.report.content import Facts, Headline, Paragraph
from tilesmith.training.data.tasks import LlamaTask
from tilesmith.training.results.report import AVERAGED, final_loss, loss_curves
from tilesmith.training.running.distributed import alone
from tilesmith.training.running.run import Record, Run, Settings

SIZES = {"hidden_dim": 128, "num_layers": 2, "num_heads": 4, "seq_len": 64}
SETTINGS = Settings(variant="v4", batch_size=16, num_steps=120, learning_rate=3e-3)
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
    return Told((facts, curve, more), {"train": result}, (headline,), passed=learned)
