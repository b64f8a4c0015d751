# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# Kernels have Triton's types, not Python's.
"""Stage 5: a kernel is launched into torch.empty_like, and nobody has told autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.models.llama import Llama
from tilesmith.models.llama.parts import V1, added
from tilesmith.training.debugging.case import Fact, Seen, Stage, main
from tilesmith.training.debugging.small import batch, has_gpu, launching, milliseconds, model, task, train
from tilesmith.training.guard import GradientError

STEPS = 40


@triton.jit
def norm_kernel(x_ptr, weight_ptr, y_ptr, n_rows, n_columns, eps, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """RMSNorm of ROWS contiguous rows."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    offsets = rows[:, None] * n_columns + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < n_columns, other=0.0)
    tl.store(y_ptr + offsets, x * inverse_rms[:, None] * weight[None, :], mask=mask)


def launched_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = added(stream, branch).contiguous()
    y = torch.empty_like(stream)
    rows, columns = stream.shape[:-1].numel(), stream.shape[-1]
    together = 4 if has_gpu() else 256  # rows of a program: the interpreter's time is by programs
    norm_kernel[(triton.cdiv(rows, together),)](
        stream, weight, y, rows, columns, eps, together, triton.next_power_of_2(columns)
    )
    return y, stream


def faulty() -> Llama:
    return model(replace(V1.parts, add_norm=launched_add_norm))


def run() -> Seen:
    losses = train(faulty(), STEPS)
    best = task().best_loss
    assert best is not None
    return Seen(
        [
            Fact("backward", backward_ms(faulty()), "ms"),
            Fact("backward of v1", backward_ms(model()), "ms"),
            Fact("loss of the first step", losses[0]),
            Fact(f"loss of step {STEPS}", losses[-1]),
            Fact(f"loss of step {STEPS} of v1", train(model(), STEPS)[-1]),
            Fact("best loss that the data allows", best, kind="counted"),
        ]
    )


def backward_ms(trained: Llama) -> float:
    with launching():
        loss = trained(*batch(0))
        return milliseconds(lambda: loss.backward(retain_graph=True))


def look() -> Seen:
    trained = faulty()
    with launching():
        trained(*batch(0)).backward()
    without = sum(parameter.grad is None for parameter in trained.parameters())
    missing = sum(parameter.numel() for parameter in trained.parameters() if parameter.grad is None)
    every = sum(parameter.numel() for parameter in trained.parameters())
    return Seen(
        [
            Fact("parameters without a gradient", without),
            Fact("parameters in all", len(list(trained.parameters())), kind="counted"),
            Fact("share of the model's numbers that never change", 100 * missing / every, "%"),
        ],
        [f"The gradient guard says: {verdict()}"],
    )


def verdict() -> str:
    try:
        train(faulty(), 1, guarded=True)
    except GradientError as error:
        return str(error)
    return "every parameter has a gradient"


STAGE = Stage(
    5,
    "gradients that are cut",
    "The backward pass is many times faster than v1's, and the loss stays far above v1's.",
    "python {program} --look",
    "The norm's result is a fresh tensor that a kernel has written into. Autograd knows nothing of that kernel, so the "
    "graph ends there, silently: the backward pass is fast because there is nothing left of it.",
    "Give the kernel a backward (torch.autograd.Function or torch.library.register_autograd), or use ops.rms_norm, "
    "which has one. And train under the guard, as `tilesmith train` does: it stops at the first step and names the "
    "parameters.",
    run,
    look,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
