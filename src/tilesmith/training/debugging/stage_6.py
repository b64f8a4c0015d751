"""Stage 6: right and fast. There is no fault: the model passes the checks of all earlier stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tilesmith.training.debugging.case import Fact, Observation, Stage, StageError, main
from tilesmith.training.debugging.small_model import LEARNING_RATE, ON_CPU, config, has_gpu, task
from tilesmith.training.results.comparison import compared
from tilesmith.training.running.distributed import alone
from tilesmith.training.running.run import Record, Run, Settings

STEPS = 40
VERSIONS = ("v1", "v4")
CPU_REMARK = ["On a CPU PyTorch computes the operators of v4: its speed is not shown here."]
OPTIONS = "" if has_gpu() else " ".join(f"--{name.replace('_', '-')} {value}" for name, value in ON_CPU.items()) + " "


@cache
def comparison() -> dict[str, Any]:
    """Compare v1 and v4 on the same parameters and data: first parity, then a timed training run of each."""
    settings = Settings(num_steps=STEPS, learning_rate=LEARNING_RATE)
    found = compared(task(), settings, VERSIONS, alone(), silently)
    wrong = [one["variant"] for one in found["parity"] if not one["passed"]]
    if wrong:
        raise StageError(f"{', '.join(wrong)} does not compute the same as v1 on this machine, so nothing was timed")
    return found


@contextmanager
def silently(run: Run) -> Iterator[Callable[[Record], None]]:
    yield lambda record: None


def run() -> Observation:
    plain, best = comparison()["variants"]
    return Observation(
        [
            *(
                Fact(f"{name} of v4 (of v1: {Fact('', plain[key], 'ms').text})", best[key], "ms")
                for name, key in (("step", "step_ms"), ("forward", "forward_ms"), ("backward", "backward_ms"))
            ),
            Fact("loss of the first step", best["losses"][0]),
            Fact(f"loss of step {STEPS}", best["losses"][-1]),
            Fact(f"loss of step {STEPS} of v1", plain["losses"][-1]),
            Fact("best possible loss", best["best_loss"], kind="counted"),
        ],
        [] if has_gpu() else CPU_REMARK,
    )


def reveal() -> Observation:
    plain, best = comparison()["variants"]
    parity = comparison()["parity"][-1]
    apart = max(abs(a - b) for a, b in zip(plain["losses"], best["losses"], strict=True))
    return Observation(
        [
            Fact("stage 1: loss of the first step", best["losses"][0]),
            Fact("stage 1: loss of guessing, ln(vocabulary)", math.log(config().vocab_size), kind="counted"),
            Fact("stage 3: sum of the phases, with waiting", sum_of_phases(best), "ms"),
            Fact("stage 3: a step of the run", best["step_ms"], "ms"),
            Fact("stage 5: error of the worst gradient", parity["worst_gradient_error"]),
            Fact("stage 5: allowed error of the worst gradient", parity["worst_gradient_allowed"]),
            Fact("largest distance between the curves of v1 and v4", apart),
        ],
        [f"The gradient guard checked all {STEPS} steps of both.", *([] if has_gpu() else CPU_REMARK)],
    )


def sum_of_phases(result: dict[str, Any]) -> float:
    return float(sum(result[f"{phase}_ms"] for phase in ("forward", "backward", "optimizer")))


STAGE = Stage(
    6,
    "right and fast",
    "The loss starts at the loss of guessing and falls like that of v1, and every time was taken with waiting.",
    f"tilesmith compare llama {OPTIONS}--variants v1,v4 --learning-rate {LEARNING_RATE} --num-steps {STEPS}",
    "There is no fault: logits and every gradient agree with plain PyTorch, which is checked before timing.",
    "None. Keep the order: first correct, then timed carefully, then fast. Check again after every change.",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
