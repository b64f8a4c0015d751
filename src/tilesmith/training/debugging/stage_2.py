# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# Kernels have Triton's types, not Python's.
"""Stage 2: memory holds the residual stream with positions innermost, and a norm reads it along its features."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.lab.inspect.model import AccessFacts
from tilesmith.models.llama.parts import V1, added, plain_add_norm
from tilesmith.training.debugging.case import Fact, Observation, Stage, main
from tilesmith.training.debugging.small_model import (
    NO_GPU,
    SECTOR_BYTES,
    TARGET,
    device,
    has_gpu,
    is_inspected,
    launching,
    milliseconds,
    model,
    traced,
    train,
)

STEPS, SEQUENCES = 2, 1  # few: without a GPU the interpreter runs one program per row of the stream
SHAPE = (2, 128, 512)  # batch, positions, features


@triton.jit
def strided_norm_kernel(
    x_ptr, weight_ptr, y_ptr, batch_stride, position_stride, feature_stride, n_features, eps, BLOCK_SIZE: tl.constexpr
):
    """RMSNorm of one position, for any strides."""
    start = tl.program_id(1).to(tl.int64) * batch_stride + tl.program_id(0).to(tl.int64) * position_stride
    features = tl.arange(0, BLOCK_SIZE)
    mask = features < n_features
    x = tl.load(x_ptr + start + features * feature_stride, mask=mask, other=0.0)  # [BLOCK_SIZE]
    inverse_rms = tl.rsqrt(tl.sum(x * x) / n_features + eps)
    weight = tl.load(weight_ptr + features, mask=mask, other=0.0)
    tl.store(y_ptr + start + features * feature_stride, x * inverse_rms * weight, mask=mask)


class StridedNorm(torch.autograd.Function):
    """The kernel, with PyTorch's gradient. The result has the strides of x."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        sizes = x.shape[-1], eps, triton.next_power_of_2(x.shape[-1])
        strided_norm_kernel[(x.shape[1], x.shape[0])](x, weight, y, *x.stride(), *sizes)
        context.eps = eps
        context.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        x, weight = (tensor.detach().requires_grad_() for tensor in context.saved_tensors)
        with torch.enable_grad():
            y, _ = plain_add_norm(x, None, weight, context.eps)
        return *torch.autograd.grad(y, (x, weight), gradients[0]), None


def features_first(stream: Tensor) -> Tensor:
    """Return the same tensor [batch, positions, features] with the positions innermost in memory."""
    return stream.transpose(1, 2).contiguous().transpose(1, 2)


def strided_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = features_first(added(stream, branch))
    return StridedNorm.apply(stream, weight, eps), stream


def run() -> Observation:
    x, weight = examples()
    stream = features_first(x)
    if is_inspected():  # inspect only needs the kernel on a stream of the default width
        return Observation([Fact("sum of the normed stream", StridedNorm.apply(stream, weight, 1e-6).sum().item())])
    ours = train(model(replace(V1.parts, add_norm=strided_add_norm)), STEPS, batch_size=SEQUENCES)
    plain = train(model(), STEPS, batch_size=SEQUENCES)
    facts = [Fact(f"loss of step {STEPS}", ours[-1]), Fact(f"loss of step {STEPS} with PyTorch's norm", plain[-1])]
    if has_gpu():
        time = milliseconds(lambda: StridedNorm.apply(stream, weight, 1e-6))
        return Observation(
            [*facts, Fact("the norm", time, "ms"), Fact("a copy of the same tensor", milliseconds(x.clone), "ms")]
        )
    moved = sum(sectors_of(access) * SECTOR_BYTES for access in streamed(stream))
    return Observation(
        [
            *facts,
            Fact(f"bytes that the norm moves on {TARGET}", moved, kind="predicted"),
            Fact("bytes of reading and writing the stream once", 2 * x.numel() * x.element_size(), kind="counted"),
        ],
        [NO_GPU],
    )


def examples() -> tuple[Tensor, Tensor]:
    return torch.randn(SHAPE, device=device()), torch.ones(SHAPE[-1], device=device())


def streamed(x: Tensor) -> list[AccessFacts]:
    """Return the kernel's accesses to the stream for input x."""
    weight = torch.ones(x.shape[-1], device=x.device)
    found = traced(lambda: StridedNorm.apply(x, weight, 1e-6), "strided_norm_kernel")
    return [access for access in found.accesses if access.argument in ("x_ptr", "y_ptr")]


def sectors_of(access: AccessFacts) -> float:
    assert access.requests is not None
    assert access.sectors_per_request is not None
    return access.requests * access.sectors_per_request


def reveal() -> Observation:
    x, weight = examples()
    facts = []
    for name, view in (("features first", features_first(x)), ("positions first", x)):
        load = streamed(view)[0]
        assert load.requests
        assert load.ideal_sectors_per_request
        facts += [
            Fact(f"stride between neighbours of a row, {name}", view.stride(2), "elements", "counted"),
            Fact(f"sectors per request, {name}", sectors_of(load) / load.requests, "", "predicted"),
            Fact(f"sectors per request if packed, {name}", load.ideal_sectors_per_request, "", "predicted"),
            Fact(f"used fraction of the moved bytes, {name}", 100 * (load.efficiency or 0.0), "%", "predicted"),
        ]
        if has_gpu():
            time = milliseconds(partial(StridedNorm.apply, view, weight, 1e-6))
            facts.append(Fact(f"time of the norm, {name}", time, "ms"))
    with launching():
        wanted, _ = plain_add_norm(x[:1], None, weight, 1e-6)
        error = (StridedNorm.apply(features_first(x[:1]), weight, 1e-6) - wanted).abs().max().item()
    return Observation([*facts, Fact("largest error of the strided norm", error)], [] if has_gpu() else [NO_GPU])


STAGE = Stage(
    2,
    "an uncoalesced layout",
    "The losses are right, but the norm takes many times as long as its bytes need at the memory's bandwidth.",
    "tilesmith inspect {program}",
    "The stream is a transposed view: in memory, neighbours in a row are a whole sequence apart. The kernel takes any "
    "strides, so its result is right, but each of a warp's 32 lanes loads its own sector for a single element.",
    "Keep features innermost in memory, as the projections write them. Or let each program process neighbouring "
    "positions, so that its lanes read consecutive addresses. A .contiguous() copy before each norm would read and "
    "write everything once more.",
    run,
    reveal,
    Path(__file__),
)

if __name__ == "__main__":
    main(STAGE)
