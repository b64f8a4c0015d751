# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# Kernels have Triton's types, not Python's.
"""Stage 4: SwiGLU with its two GEMMs in one kernel, in which each program computes one element of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.lab.inspect.model import Kernel
from tilesmith.models.llama.parts import V1, separately_gated
from tilesmith.training.debugging.case import Fact, Observation, Stage, main
from tilesmith.training.debugging.small_model import (
    NO_GPU,
    TARGET,
    batch,
    device,
    has_gpu,
    is_inspected,
    launching,
    milliseconds,
    model,
    traced,
)

ROWS, INPUTS, OUTPUTS = 1024, 512, 2048  # the model's defaults: 8 sequences of 128 tokens
TRACED_ROWS, TRACED_OUTPUTS = 8, 32  # all programs do the same work, so a small grid is enough


@triton.jit
def elementwise_swiglu_kernel(x_ptr, weight_ptr, y_ptr, n_inputs, n_outputs, BLOCK_SIZE: tl.constexpr):
    """Compute one element of silu(x · gateᵀ) · (x · upᵀ); the weight holds the rows of gate, then those of up."""
    row, output = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    inputs = tl.arange(0, BLOCK_SIZE)
    mask = inputs < n_inputs
    x = tl.load(x_ptr + row * n_inputs + inputs, mask=mask, other=0.0)  # [BLOCK_SIZE]
    gate = tl.sum(x * tl.load(weight_ptr + output * n_inputs + inputs, mask=mask, other=0.0))
    up = tl.sum(x * tl.load(weight_ptr + (n_outputs + output) * n_inputs + inputs, mask=mask, other=0.0))
    tl.store(y_ptr + row * n_outputs + output, gate * tl.sigmoid(gate) * up)


class ElementwiseSwiGLU(torch.autograd.Function):
    """The kernel, with PyTorch's gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows, outputs = x.reshape(-1, x.shape[-1]), weight.shape[0] // 2
        y = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
        grid = rows.shape[0], outputs
        elementwise_swiglu_kernel[grid](rows, weight, y, x.shape[-1], outputs, triton.next_power_of_2(x.shape[-1]))
        context.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        x, weight = (tensor.detach().requires_grad_() for tensor in context.saved_tensors)
        with torch.enable_grad():
            y = separately_gated(x, weight)
        return torch.autograd.grad(y, (x, weight), gradients[0])


def elementwise_gated(x: Tensor, weight: Tensor) -> Tensor:
    gated: Tensor = ElementwiseSwiGLU.apply(x, weight)
    return gated


def run() -> Observation:
    facts = [Fact("loss", loss(elementwise_gated)), Fact("loss with the BLAS", loss(separately_gated))]
    if is_inspected():
        elementwise_gated(*examples(TRACED_ROWS, TRACED_OUTPUTS))
        return Observation(facts)
    facts.append(Fact("programs launched at the model's default size", ROWS * OUTPUTS, kind="counted"))
    if has_gpu():
        x, weight = examples(ROWS, OUTPUTS)
        return Observation([*facts, Fact("SwiGLU", milliseconds(lambda: elementwise_gated(x, weight)), "ms")])
    return Observation(
        [
            *facts,
            Fact("bytes that the programs load and store", accessed_bytes(trace()), kind="predicted"),
            Fact("bytes of x, the weight and the result", least_bytes(), kind="counted"),
        ],
        [NO_GPU],
    )


def loss(gated: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the loss of the first few tokens, before training."""
    tokens, targets = batch(0, size=1)
    with torch.no_grad(), launching():
        found: Tensor = model(replace(V1.parts, gated=gated))(tokens[:, :2], targets[:, :2])
    return found.item()


def examples(rows: int, outputs: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, INPUTS, device=device()), torch.randn(2 * outputs, INPUTS, device=device())


@cache
def trace() -> Kernel:
    x, weight = examples(TRACED_ROWS, TRACED_OUTPUTS)
    return traced(lambda: elementwise_gated(x, weight), "elementwise_swiglu_kernel")


def accessed_bytes(found: Kernel) -> float:
    """Return the bytes that all programs load and store at the default size, scaled up from the trace."""
    return found.bytes / found.programs * ROWS * OUTPUTS


def least_bytes() -> int:
    return 4 * (ROWS * INPUTS + 2 * OUTPUTS * INPUTS + ROWS * OUTPUTS)


def reveal() -> Observation:
    found, flops = trace(), 2 * 2 * ROWS * INPUTS * OUTPUTS
    loads = {one.name: one.loads_per_element for one in found.arguments if one.is_tensor}
    x, weight = examples(ROWS, OUTPUTS)
    facts = [
        Fact(f"loads of each element of x, {TRACED_OUTPUTS} outputs", loads["x_ptr"], kind="predicted"),
        Fact(f"loads of each element of the weight, {TRACED_ROWS} rows", loads["weight_ptr"], kind="predicted"),
        Fact("tensor cores used (0 no, 1 yes)", found.targets[TARGET].tensor_cores, kind="compiled"),
        Fact("flops of the two products at the default size", flops, kind="counted"),
        Fact("flops per byte that the kernel loads and stores", flops / accessed_bytes(found), kind="predicted"),
        Fact("flops per byte, if each byte moves once", flops / least_bytes(), kind="counted"),
        Fact("the same by the BLAS of this machine", milliseconds(lambda: separately_gated(x, weight)), "ms"),
    ]
    if has_gpu():
        facts.append(Fact("the kernel", milliseconds(lambda: elementwise_gated(x, weight)), "ms"))
    return Observation(facts, [] if has_gpu() else [NO_GPU])


STAGE = Stage(
    4,
    "a GEMM without tiles",
    "The loss is right and one kernel computes everything, but the feed-forward block is by far the slowest part.",
    "tilesmith inspect {program}",
    "The kernel contains two GEMMs. Each program computes one element, so every row of x is loaded once per output and "
    "every row of the weight once per token, and no tensor core is used. A tiled GEMM loads each element once per "
    "tile.",
    "Leave GEMMs to the BLAS and fuse the elementwise work between them: ops.swiglu(F.linear(x, weight)), as v3 does.",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
