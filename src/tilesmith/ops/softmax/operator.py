"""Meaning, operator and spec."""

import math
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import require_floating
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.softmax.backward import backward
from tilesmith.ops.softmax.forward import forward
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim)


def native(x: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim, dtype=x.dtype)  # named, so that autocast gives no other


def prepare(x: Tensor, dim: int) -> tuple[Tensor, int]:
    return x, dim % (x.ndim or 1)


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    context.dim = inputs[1]
    context.save_for_backward(output)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, None]:
    (y,) = context.saved_tensors
    return backward(dy, y, context.dim), None


@operator(
    "softmax", reference=reference, native=native, forward=forward, save=save, gradient=gradient, prepare=prepare
)  # fmt: skip
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / Σ exp(x) along one dimension, in x's dtype and computed in single precision or better.

    As in PyTorch, a row of nothing but −∞ gives NaN.
    """
    require_floating("softmax", x=x)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"softmax: dim is a {type(dim).__name__}, but must be an int")
    dimensions = x.ndim or 1
    if not -dimensions <= dim < dimensions:
        raise ValueError(f"softmax: dim is {dim}, but must be from {-dimensions} to {dimensions - 1}")
    return x


def liger(x: Tensor, dim: int = -1) -> Tensor:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    _require_last(x, dim)
    return LigerSoftmaxFunction.apply(x)  # type: ignore[no-any-return]  # untyped


def quack(x: Tensor, dim: int = -1) -> Tensor:
    from quack.softmax import softmax

    _require_last(x, dim)
    return softmax(x)  # type: ignore[no-any-return]  # untyped


def _require_last(x: Tensor, dim: int) -> None:
    if dim % x.ndim != x.ndim - 1:
        raise NotImplementedError("takes the last dimension alone")


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Cases with channels have a dimension after the one that is reduced."""
    dim = 1 if "channels" in case.sizes else -1
    return {"x": layout(torch.randn(*case.sizes.values(), dtype=dtype, device=device)), "dim": dim}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = math.prod(case.sizes.values())
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize, flops=5 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize, flops=4 * elements),
    )


SPEC = Spec(
    name="softmax",
    op=softmax,
    reference=reference,
    formula="y = exp(x) / Σ exp(x)",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=7, cols=33),
        Case("middle", images=2, channels=300, pixels=33),
        Case("wide", rows=3, cols=9000),
        Case("long", rows=1, cols=17000),
        Case("segmentation", images=16, channels=21, pixels=65536),
        Case("generation", rows=16, cols=262144),
        Case("large", rows=16384, cols=4096),
        Case("vocabulary", rows=4096, cols=32768),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger, "quack": quack},
)
