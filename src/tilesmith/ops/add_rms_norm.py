"""RMSNorm of a sum: s = x + residual, y = s / √(mean(s²) + eps) · w. The operator returns both.

It stands between two blocks of a transformer. Two operators would move five elements per output; this one moves four
(read x and residual, write s and y) and does about five flops. Backward moves four (read s, dy and ds, write the
gradient); two operators would move six.

- s is rounded to its dtype before the norm, so y is the norm of exactly the returned s.
- The backward keeps only s and w. The next block holds s anyway.
- x and residual have the same gradient, so it is written once.
"""

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.device.norms.backward import NormGradient
from tilesmith.ops.rms_norm.backward import parameter_like, plan_norm_gradient
from tilesmith.ops.rms_norm.forward import plan_norm
from tilesmith.ops.rms_norm.operator import native as native_norm
from tilesmith.ops.rms_norm.operator import reference as norm
from tilesmith.ops.rms_norm.operator import require_normable
from tilesmith.ops.runtime.arguments import require_floating, require_same_device
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    total = x + residual
    return norm(total, weight, eps).to(x.dtype), total


def native(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    total = x + residual
    return native_norm(total, weight, eps).to(x.dtype), total


@kernels("add_rms_norm_forward")
def forward(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.promote_types(x.dtype, residual.dtype))


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, residual: Operand, weight: Operand | None, eps: float
) -> tuple[Operand, Operand]:
    y, total = plan_norm(plan, x, weight, eps, residual=residual)
    assert total is not None
    return y, total


@kernels("add_rms_norm_backward")
def backward(
    dy: Tensor, dsum: Tensor | None, total: Tensor, weight: Tensor | None, eps: float, weight_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient that x and residual share, and dw; dw is empty unless wanted."""
    return torch.empty_like(total), parameter_like(total, weight, weight_gradient)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, dsum: Operand | None, total: Operand, weight: Operand | None, eps: float,
    weight_gradient: bool,
) -> tuple[Operand, Operand]:  # fmt: skip
    return plan_norm_gradient(plan, NormGradient(dy, total, weight, dsum, eps), weight_gradient)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, residual, weight, context.eps = inputs
    context.dtypes = x.dtype, residual.dtype
    context.save_for_backward(output[1], weight)
    context.set_materialize_grads(False)  # an unused result costs no tensor of zeros


def gradient(context: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Tensor | None, ...]:
    total, weight = context.saved_tensors
    shared, dweight = dsum, None
    if dy is not None:
        weight_gradient = weight is not None and context.needs_input_grad[2]
        shared, dweight = backward(dy, dsum, total, weight, context.eps, weight_gradient)
        dweight = dweight if weight_gradient else None
    # One tensor for both, as in PyTorch's own addition. Autograd adds in place only to gradients that it alone holds.
    dx, dresidual = (
        None if shared is None or not needed else shared.to(dtype)
        for needed, dtype in zip(context.needs_input_grad[:2], context.dtypes, strict=True)
    )
    return dx, dresidual, dweight, None


@operator("add_rms_norm", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return (y, s): s = x + residual, and its norm y = s / √(mean(s²) + eps) · weight over the last dimension.

    y has x's dtype and s the dtype of x + residual, so that a residual in higher precision stays so. The norm is
    computed in single precision or better. weight is optional and may have another dtype.
    """
    require_normable("add_rms_norm", x, weight, eps)
    require_floating("add_rms_norm", residual=residual)
    if residual.shape != x.shape:
        raise ValueError(
            f"add_rms_norm: residual has shape {tuple(residual.shape)}, but must have that of x, {tuple(x.shape)}"
        )
    require_same_device("add_rms_norm", x=x, residual=residual)
    return x, residual


def liger(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps)  # type: ignore[no-any-return]


def quack(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {
        "x": layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device)),
        "residual": layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device)),
        "weight": layout(torch.randn(case.cols, dtype=dtype, device=device)),
        "eps": 1e-3 if case.name == "odd" else 1e-6,  # 1e-3: float32 shows an eps left out
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    weight_bytes = case.cols * dtype.itemsize
    return Cost(
        forward=Work(bytes=4 * elements * dtype.itemsize + weight_bytes, flops=5 * elements),
        backward=Work(bytes=4 * elements * dtype.itemsize + 2 * weight_bytes, flops=13 * elements),
    )


SPEC = Spec(
    name="add_rms_norm",
    op=add_rms_norm,
    reference=reference,
    formula="s = x + residual, y = s / √(mean(s²) + eps) · w",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=19, cols=65),
        Case("wide", rows=3, cols=3000),
        Case("large", rows=16384, cols=4096),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger, "quack": quack},
)
