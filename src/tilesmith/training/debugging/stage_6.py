"""Stage 6: right and fast. Nothing to mend: the same looks as before, at a model that passes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tilesmith.training.compare import compared
from tilesmith.training.debugging.case import Fact, Seen, Stage, StageError, main
from tilesmith.training.debugging.small import LEARNING_RATE, ON_CPU, config, has_gpu, task
from tilesmith.training.distributed import alone
from tilesmith.training.run import Record, Run, Settings

STEPS = 40
VERSIONS = ("v1", "v4")
HERE = ["On a CPU the operators of v4 are PyTorch's own: nothing is claimed about its speed here."]
OPTIONS = "" if has_gpu() else " ".join(f"--{name.replace('_', '-')} {value}" for name, value in ON_CPU.items()) + " "


@cache
def comparison() -> dict[str, Any]:
    """v1 and v4 on the same parameters and data: parity first, then each trained under the guard and timed."""
    settings = Settings(num_steps=STEPS, learning_rate=LEARNING_RATE)
    found = compared(task(), settings, VERSIONS, alone(), silently)
    wrong = [one["variant"] for one in found["parity"] if not one["passed"]]
    if wrong:
        raise StageError(f"{', '.join(wrong)} does not compute what v1 computes on this machine: nothing is timed")
    return found


@contextmanager
def silently(run: Run) -> Iterator[Callable[[Record], None]]:
    yield lambda record: None


def run() -> Seen:
    plain, best = comparison()["variants"]
    return Seen(
        [
            *(
                Fact(f"{name} of v4 (of v1: {Fact('', plain[key], 'ms').text})", best[key], "ms")
                for name, key in (("step", "step_ms"), ("forward", "forward_ms"), ("backward", "backward_ms"))
            ),
            Fact("loss of the first step", best["losses"][0]),
            Fact(f"loss of step {STEPS}", best["losses"][-1]),
            Fact(f"loss of step {STEPS} of v1", plain["losses"][-1]),
            Fact("best loss that the data allows", best["best_loss"], kind="counted"),
        ],
        [] if has_gpu() else HERE,
    )


def look() -> Seen:
    plain, best = comparison()["variants"]
    parity = comparison()["parity"][-1]
    apart = max(abs(a - b) for a, b in zip(plain["losses"], best["losses"], strict=True))
    return Seen(
        [
            Fact("stage 1: loss of the first step", best["losses"][0]),
            Fact("stage 1: loss of guessing, ln(vocabulary)", math.log(config().vocab_size), kind="counted"),
            Fact("stage 3: forward, backward and optimiser, each waited for", sum_of_phases(best), "ms"),
            Fact("stage 3: a step as the run takes it", best["step_ms"], "ms"),
            Fact("stage 5: error of the worst gradient", parity["worst_gradient_error"]),
            Fact("stage 5: error that rounding allows it", parity["worst_gradient_allowed"]),
            Fact("largest distance between the curves of v1 and v4", apart),
        ],
        [f"The gradient guard has watched all {STEPS} steps of both.", *([] if has_gpu() else HERE)],
    )


def sum_of_phases(result: dict[str, Any]) -> float:
    return float(sum(result[f"{phase}_ms"] for phase in ("forward", "backward", "optimizer")))


STAGE = Stage(
    6,
    "right and fast",
    "The loss starts at that of guessing and falls as v1's does, and every time was waited for.",
    f"tilesmith compare llama {OPTIONS}--variants v1,v4 --learning-rate {LEARNING_RATE} --num-steps {STEPS}",
    "There is no fault: logits and every gradient agree with plain PyTorch before anything is timed.",
    "Nothing. Keep the order: right first, then timed with care, then fast; and look again after every change.",
    run,
    look,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
