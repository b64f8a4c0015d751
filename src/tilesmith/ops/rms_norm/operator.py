"""The operator: its definition, its checks, its gradient and its spec."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.rms_norm.backward import backward
from tilesmith.ops.rms_norm.forward import forward
from tilesmith.ops.runtime.arguments import (
    require_dimensions,
    require_floating,
    require_number,
    require_same_device,
    require_vector,
)
from tilesmith.ops.runtime.operator import operator
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else (y * weight).to(x.dtype)


def native(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    if weight is not None and weight.dtype != x.dtype:
        # PyTorch's own warns and takes a slow path. Squares of float16 leave its range.
        return reference(x.to(torch.promote_types(x.dtype, torch.float32)), weight, eps).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, context.eps = inputs
    context.save_for_backward(x, weight)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    weight_gradient = weight is not None and context.needs_input_grad[1]
    dx, dweight = backward(dy, x, weight, context.eps, weight_gradient)
    return dx, dweight if weight_gradient else None, None


def require_normable(operator: str, x: Tensor, weight: Tensor | None, eps: object) -> None:
    """Check the arguments of a norm over the last dimension."""
    require_floating(operator, x=x)
    if weight is not None:
        require_floating(operator, weight=weight)
    require_dimensions(operator, "x", x, at_least=1)
    require_vector(operator, "weight", weight, x.shape[-1], of="x")
    require_same_device(operator, x=x, weight=weight)
    require_number(operator, "eps", eps, at_least=0.0)


@operator("rms_norm", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Return x / √(mean(x²) + eps) over the last dimension, times weight if there is one.

    The result has x's dtype and is computed in single precision or better. weight may have another dtype.
    """
    require_normable("rms_norm", x, weight, eps)
    return x


def liger(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)  # type: ignore[no-any-return]


def quack(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=eps)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {
        "x": layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device)),
        "weight": layout(torch.randn(case.cols, dtype=dtype, device=device)),
        "eps": 1e-3 if case.name == "odd" else 1e-6,  # 1e-3: float32 shows an eps left out
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    weight_bytes = case.cols * dtype.itemsize
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize + weight_bytes, flops=4 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize + 2 * weight_bytes, flops=12 * elements),
    )


SPEC = Spec(
    name="rms_norm",
    op=rms_norm,
    reference=reference,
    formula="y = x / √(mean(x²) + eps) · w",
    cases=[
        Case("one", rows=1, cols=1),
        Case("tiny", rows=4, cols=200),
        Case("odd", rows=37, cols=65),
        Case("wide", rows=2, cols=17000),
        Case("seed", rows=1024, cols=512),
        Case("narrow", rows=4096, cols=128),
        Case("heads", rows=16384, cols=512),
        Case("large", rows=16384, cols=4096),
        Case("larger", rows=16384, cols=8192),
        Case("vocabulary", rows=4096, cols=32768),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger, "quack": quack},
)
