"""RMSNorm with the factor 1 + weight (Gemma), alone and of a sum: the same kernels, for use inside patched models.

1 + weight in single precision as a tensor would take a launch in the forward, and one in the backward that rounds its
gradient to the weight's dtype.
"""

import torch
from torch import Tensor

from tilesmith.ops.device.norms.backward import NormGradient
from tilesmith.ops.rms_norm.backward import parameter_like, plan_norm_gradient
from tilesmith.ops.rms_norm.forward import plan_norm
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@kernels("one_plus_rms_norm_forward")
def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand, eps: float) -> Operand:
    y, _ = plan_norm(plan, x, weight, eps, one_plus=True)
    return y


@kernels("one_plus_add_rms_norm_forward")
def sum_forward(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and the sum."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.promote_types(x.dtype, residual.dtype))


@sum_forward.plan
def plan_sum_forward(
    plan: Plan, x: Operand, residual: Operand, weight: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    y, total = plan_norm(plan, x, weight, eps, residual=residual, one_plus=True)
    assert total is not None
    return y, total


@kernels("one_plus_rms_norm_backward")
def backward(
    dy: Tensor, dsum: Tensor | None, x: Tensor, weight: Tensor, eps: float, weight_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return dx + dsum, and dw; dw is empty unless wanted."""
    return torch.empty_like(x), parameter_like(x, weight, weight_gradient)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, dsum: Operand | None, x: Operand, weight: Operand, eps: float, weight_gradient: bool
) -> tuple[Operand, Operand]:
    return plan_norm_gradient(plan, NormGradient(dy, x, weight, dsum, eps, one_plus=True), weight_gradient)
