"""Stage 1: the embedding, which is also the head, is drawn from N(0, 1), the default of nn.Embedding."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from tilesmith.models.llama import Llama
from tilesmith.models.llama.model import INITIAL_STD
from tilesmith.training.debugging.case import Fact, Observation, Stage, main
from tilesmith.training.debugging.small_model import batch, config, model, task, train

STEPS = 20


def initialised(std: float) -> Llama:
    made = model()
    nn.init.normal_(made.embedding, std=std, generator=torch.Generator(made.embedding.device).manual_seed(0))
    return made


def run() -> Observation:
    losses = train(initialised(std=1.0), STEPS)
    best = task().best_loss
    assert best is not None
    return Observation(
        [
            Fact("loss of the first step", losses[0]),
            Fact(f"loss of step {STEPS}", losses[-1]),
            Fact("loss of guessing, ln(vocabulary)", math.log(config().vocab_size), kind="counted"),
            Fact("best possible loss", best, kind="counted"),
        ]
    )


def reveal() -> Observation:
    tokens, _ = batch(0)
    with torch.no_grad():
        logits = [initialised(std)(tokens).std().item() for std in (1.0, INITIAL_STD)]
    losses = train(initialised(INITIAL_STD), STEPS)
    return Observation(
        [
            Fact("standard deviation of the embedding", initialised(1.0).embedding.std().item()),
            Fact("standard deviation of the first logits", logits[0]),
            Fact("√hidden, the norm of the rows before the head", config().hidden_dim ** 0.5, kind="counted"),
            Fact(f"standard deviation of the first logits, from N(0, {INITIAL_STD})", logits[1]),
            Fact(f"loss of the first step, from N(0, {INITIAL_STD})", losses[0]),
            Fact(f"loss of step {STEPS}, from N(0, {INITIAL_STD})", losses[-1]),
        ]
    )


STAGE = Stage(
    1,
    "wrong initialisation",
    "The loss starts far above the loss of guessing, and much of the training is spent on reaching that level.",
    "python {program} --reveal",
    "The embedding is drawn from N(0, 1), the default of nn.Embedding, and is also the head. Each logit is then a sum "
    "of hidden_dim such numbers, so the first predictions are confident and wrong.",
    f"Draw it from N(0, {INITIAL_STD}): nn.init.normal_(model.embedding, std={INITIAL_STD}). Check the first loss of "
    "every run: it must be near ln(vocabulary).",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
