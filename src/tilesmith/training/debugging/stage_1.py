"""Stage 1: the embedding, which is also the head, starts as PyTorch's nn.Embedding would start it: from N(0, 1)."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from tilesmith.models.llama import Llama
from tilesmith.models.llama.model import INITIAL_STD
from tilesmith.training.debugging.case import Fact, Seen, Stage, main
from tilesmith.training.debugging.small import batch, config, model, task, train

STEPS = 20


def initialised(std: float) -> Llama:
    made = model()
    nn.init.normal_(made.embedding, std=std, generator=torch.Generator(made.embedding.device).manual_seed(0))
    return made


def run() -> Seen:
    losses = train(initialised(std=1.0), STEPS)
    best = task().best_loss
    assert best is not None
    return Seen(
        [
            Fact("loss of the first step", losses[0]),
            Fact(f"loss of step {STEPS}", losses[-1]),
            Fact("loss of guessing, ln(vocabulary)", math.log(config().vocab_size), kind="counted"),
            Fact("best loss that the data allows", best, kind="counted"),
        ]
    )


def look() -> Seen:
    tokens, _ = batch(0)
    with torch.no_grad():
        logits = [initialised(std)(tokens).std().item() for std in (1.0, INITIAL_STD)]
    losses = train(initialised(INITIAL_STD), STEPS)
    return Seen(
        [
            Fact("standard deviation of the embedding", initialised(1.0).embedding.std().item()),
            Fact("standard deviation of the first logits", logits[0]),
            Fact("√hidden, what the norm before the head makes of N(0, 1)", config().hidden_dim ** 0.5, kind="counted"),
            Fact(f"standard deviation of the first logits, from N(0, {INITIAL_STD})", logits[1]),
            Fact(f"loss of the first step, from N(0, {INITIAL_STD})", losses[0]),
            Fact(f"loss of step {STEPS}, from N(0, {INITIAL_STD})", losses[-1]),
        ]
    )


STAGE = Stage(
    1,
    "wrong initialisation",
    "The loss begins far above that of guessing, and most of training goes into coming down to it.",
    "python {program} --look",
    "The embedding is drawn from N(0, 1), as nn.Embedding does by itself, and it is the head too: each logit is a sum "
    "of as many such numbers as the stream is wide, so the first predictions are confident and wrong.",
    f"Draw it from N(0, {INITIAL_STD}): nn.init.normal_(model.embedding, std={INITIAL_STD}). Look at the first loss of "
    "every run: it must be near ln(vocabulary).",
    run,
    look,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
