# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# Kernels have Triton's types, not Python's.
"""Stage 5: a kernel writes into torch.empty_like, and autograd does not know about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.models.llama import Llama
from tilesmith.models.llama.parts import V1, added
from tilesmith.training.debugging.case import Fact, Observation, Stage, main
from tilesmith.training.debugging.small_model import batch, has_gpu, launching, milliseconds, model, task, train
from tilesmith.training.running.gradient_guard import GradientError

STEPS = 40


@triton.jit
def norm_kernel(x_ptr, weight_ptr, y_ptr, n_rows, n_columns, eps, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """RMSNorm of ROWS contiguous rows."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    offsets = rows[:, None] * n_columns + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)  # [ROWS, BLOCK_SIZE]
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)  # [ROWS]
    weight = tl.load(weight_ptr + columns, mask=columns < n_columns, other=0.0)
    tl.store(y_ptr + offsets, x * inverse_rms[:, None] * weight[None, :], mask=mask)


def launched_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = added(stream, branch).contiguous()
    y = torch.empty_like(stream)
    rows, columns = stream.shape[:-1].numel(), stream.shape[-1]
    rows_per_program = 4 if has_gpu() else 256  # the interpreter's time grows with the number of programs
    norm_kernel[(triton.cdiv(rows, rows_per_program),)](
        stream, weight, y, rows, columns, eps, rows_per_program, triton.next_power_of_2(columns)
    )
    return y, stream


def faulty() -> Llama:
    return model(replace(V1.parts, add_norm=launched_add_norm))


def run() -> Observation:
    losses = train(faulty(), STEPS)
    best = task().best_loss
    assert best is not None
    return Observation(
        [
            Fact("backward", backward_ms(faulty()), "ms"),
            Fact("backward of v1", backward_ms(model()), "ms"),
            Fact("loss of the first step", losses[0]),
            Fact(f"loss of step {STEPS}", losses[-1]),
            Fact(f"loss of step {STEPS} of v1", train(model(), STEPS)[-1]),
            Fact("best possible loss", best, kind="counted"),
        ]
    )


def backward_ms(trained: Llama) -> float:
    with launching():
        loss = trained(*batch(0))
        return milliseconds(lambda: loss.backward(retain_graph=True))


def reveal() -> Observation:
    trained = faulty()
    with launching():
        trained(*batch(0)).backward()
    without = sum(parameter.grad is None for parameter in trained.parameters())
    missing = sum(parameter.numel() for parameter in trained.parameters() if parameter.grad is None)
    every = sum(parameter.numel() for parameter in trained.parameters())
    return Observation(
        [
            Fact("parameters without a gradient", without),
            Fact("all parameters", len(list(trained.parameters())), kind="counted"),
            Fact("fraction of the model's weights that never change", 100 * missing / every, "%"),
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
    "missing gradients",
    "The backward pass is many times faster than that of v1, and the loss stays far above that of v1.",
    "python {program} --reveal",
    "A kernel writes the norm's result into a new tensor. Autograd does not know this kernel, so the graph ends there "
    "without a message: the backward pass is fast because most of it does not run.",
    "Give the kernel a backward (torch.autograd.Function or torch.library.register_autograd), or use ops.rms_norm, "
    "which has one. Train with the gradient guard, as `tilesmith train` does: it stops at the first step and names "
    "the parameters.",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
