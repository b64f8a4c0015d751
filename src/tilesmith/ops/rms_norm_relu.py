"""RMSNorm and ReLU in one: y = max(x / √(mean(x²) + eps) · w, 0).

Moves two elements per output, where two operators move four. Backward moves three (read x and dy, write dx), where two
operators move six and keep the norm's result. This one keeps only x and w: the sign of x · w tells where y is zero.
"""

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.device.norms.backward import NormGradient
from tilesmith.ops.rms_norm.backward import parameter_like, plan_norm_gradient
from tilesmith.ops.rms_norm.forward import plan_norm
from tilesmith.ops.rms_norm.operator import cost, make_inputs, require_normable, rms_norm, save
from tilesmith.ops.rms_norm.operator import native as native_norm
from tilesmith.ops.rms_norm.operator import reference as norm
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Spec


def reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    return torch.relu(norm(x, weight, eps))


def native(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    if x.dtype == torch.float16:  # a norm that rounds to zero would lose its gradient in the ReLU
        return torch.relu(norm(x.float(), weight, eps)).half()
    return torch.relu(native_norm(x, weight, eps))


@kernels("rms_norm_relu_forward")
def forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand | None, eps: float) -> Operand:
    y, _ = plan_norm(plan, x, weight, eps, relu=True)
    return y


@kernels("rms_norm_relu_backward")
def backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return dx and dw; dw is empty unless wanted."""
    return torch.empty_like(x), parameter_like(x, weight, weight_gradient)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, eps: float, weight_gradient: bool
) -> tuple[Operand, Operand]:
    return plan_norm_gradient(plan, NormGradient(dy, x, weight, eps=eps), weight_gradient, relu=True)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    weight_gradient = weight is not None and context.needs_input_grad[1]
    dx, dweight = backward(dy, x, weight, context.eps, weight_gradient)
    return dx, dweight if weight_gradient else None, None


@operator("rms_norm_relu", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def rms_norm_relu(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Return max(x / √(mean(x²) + eps) · weight, 0) over the last dimension.

    The result has x's dtype and is computed in single precision or better. weight is optional and may have another
    dtype. Elements of zero have no gradient.
    """
    require_normable("rms_norm_relu", x, weight, eps)
    return x


def separate(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the same without fusion: our own norm, then PyTorch's ReLU."""
    return torch.relu(rms_norm(x, weight, eps))


SPEC = Spec(
    name="rms_norm_relu",
    op=rms_norm_relu,
    reference=reference,
    formula="y = max(x / √(mean(x²) + eps) · w, 0)",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=37, cols=65),
        Case("wide", rows=3, cols=3000),
        Case("large", rows=16384, cols=4096),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "separate": separate},
)
