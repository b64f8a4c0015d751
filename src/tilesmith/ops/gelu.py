"""GELU: y = x · Φ(x), with Φ the normal distribution's, exact or approximated by tanh.

Moves two elements per output (read x, write y), and three in the backward. The kernels are those of `swiglu` without
its second factor. The backward can also write y again, so that a layer need not keep y for the gradient of the next
weight.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.device.elementwise import CASES, compute_dtype, tile_config, tile_grid
from tilesmith.ops.runtime.arguments import require_floating
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.swiglu.operator import swiglu_backward_kernel, swiglu_forward_kernel
from tilesmith.spec import Case, Cost, Layout, Spec, Work

ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}
"""The kernels' activation by the argument `approximate`."""


def reference(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


@kernels("gelu_forward")
def forward(x: Tensor, approximate: str) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, approximate: str) -> Operand:
    y = plan.empty_like(x)
    walk = as_elements(x.shape, y.strides, x.strides)
    config = plan.choose(tile_config(walk, x.element_bytes), "columns", walk.columns_bucket, x.dtype)
    plan.launch(
        swiglu_forward_kernel, tile_grid(walk, config), config,
        gate_ptr=x, up_ptr=None, y_ptr=y, up_strides=None, up_start=0, **walk.arguments("y", "gate"),
        ACTIVATION=ACTIVATIONS[approximate], COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    return y


@kernels("gelu_backward")
def backward(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    return torch.empty_like(x)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, x: Operand, approximate: str) -> Operand:
    return _plan_gradient(plan, dy, x, None, approximate)


@kernels("gelu_backward_with_output")
def backward_with_output(dy: Tensor, x: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and gelu(x)."""
    return torch.empty_like(x), torch.empty_like(dy)


@backward_with_output.plan
def plan_backward_with_output(plan: Plan, dy: Operand, x: Operand, approximate: str) -> tuple[Operand, Operand]:
    y = plan.empty_like(dy)
    return _plan_gradient(plan, dy, x, y, approximate), y


def _plan_gradient(plan: Plan, dy: Operand, x: Operand, y: Operand | None, approximate: str) -> Operand:
    dx = plan.empty_like(x)
    walked = {"dgate": dx, "gate": x, "dy": dy, **({} if y is None else {"y": y})}
    walk = as_elements(x.shape, *(operand.strides for operand in walked.values()))
    config = plan.choose(tile_config(walk, 2 * x.element_bytes), "columns", walk.columns_bucket, x.dtype)
    plan.launch(
        swiglu_backward_kernel, tile_grid(walk, config), config,
        dy_ptr=dy, gate_ptr=x, up_ptr=None, dgate_ptr=dx, dup_ptr=None, y_ptr=y, up_strides=None, dup_strides=None,
        up_start=0, dup_start=0, ACTIVATION=ACTIVATIONS[approximate], OUTPUT=y is not None,
        COMPUTE=compute_dtype(x.dtype), **{"y_strides": None, **walk.arguments(*walked)},
    )  # fmt: skip
    return dx


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, context.approximate = inputs
    context.save_for_backward(x)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, None]:
    (x,) = context.saved_tensors
    return backward(dy, x, context.approximate), None


def native(x: Tensor, approximate: str = "none") -> Tensor:
    if x.device.type == "cpu":
        # PyTorch's gelu of infinity was NaN on x86, and its gradient rejects cotangents that overlap in memory.
        return reference(x.to(torch.promote_types(x.dtype, torch.float32)), approximate).to(x.dtype)
    return F.gelu(x, approximate=approximate)


@operator("gelu", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x · Φ(x), element by element, in x's dtype and computed in single precision or better.

    With approximate="tanh", Φ(x) is approximated as torch.nn.functional.gelu does.
    """
    require_floating("gelu", x=x)
    require_approximate("gelu", approximate)
    return x


def require_approximate(op: str, approximate: object) -> None:
    if approximate not in ACTIVATIONS:
        raise ValueError(f"{op}: approximate is {approximate!r}, but must be 'none' or 'tanh'")


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    x = layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device))
    return {"x": x, "approximate": "tanh" if "tanh" in case.name else "none"}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize, flops=8 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize, flops=15 * elements),
    )


SPEC = Spec(
    name="gelu",
    op=gelu,
    reference=reference,
    formula="y = x · Φ(x)",
    cases=[*CASES, Case("odd-tanh", rows=7, cols=33), Case("large-tanh", rows=16384, cols=8192)],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native},
)
