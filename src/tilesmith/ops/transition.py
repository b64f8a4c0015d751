"""Transition: y = relu(norm(x)·w₁ᵀ + b₁)·w₂ᵀ + b₂, or x + y: the feed-forward block of an Evoformer.

The two GEMMs take almost all the time, and the elementwise work costs no passes of its own. Forward, relu runs in the
first GEMM's epilogue, and the second GEMM's epilogue adds x. Backward, the pass that sums the first bias's gradient
applies relu's. With a residual, the norm's backward adds dy and sums the second bias's gradient.

This module has no kernel of its own: `matmul/internal/exact_or_blas.py` chooses the GEMMs, `layer_norm` and `sum` run
their own kernels. A new kernel goes there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.backward import branch_backward as norm_branch_backward
from tilesmith.ops.layer_norm.forward import forward as norm_forward
from tilesmith.ops.layer_norm.operator import native as layer_norm
from tilesmith.ops.matmul.backward import finish_gradient
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_with_addend, product_with_relu
from tilesmith.ops.runtime.arguments import (
    require_dimensions,
    require_floating,
    require_number,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.composing.laid_out import laid_out_like
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.sum import forward as sum_over
from tilesmith.spec import Case, Cost, Layout, Spec, Work

NAME = "transition"


def reference(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float = 1e-5, residual: bool = False,
) -> Tensor:  # fmt: skip
    hidden = torch.relu(F.linear(layer_norm(x, norm_weight, norm_bias, eps), expand_weight, expand_bias))
    y = F.linear(hidden, contract_weight, contract_bias)
    return x + y if residual else y


@kernels("transition_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, and for the backward norm(x), the norm's statistics, and the hidden layer after relu."""
    rows, single = x.numel() // x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    return (
        torch.empty_like(x), x.new_empty(rows, x.shape[-1]), x.new_empty(rows, 2, dtype=single),
        x.new_empty(rows, expand_weight.shape[0]),
    )  # fmt: skip


@forward.composed
def compute_forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    with without_autocast(x):
        rows = x.reshape(-1, x.shape[-1])
        xn, statistics = norm_forward(rows, norm_weight, norm_bias, eps, True)
        hidden = product_with_relu(xn, expand_weight.t(), expand_bias)
        y = product_with_addend(rows if residual else None, hidden, contract_weight.t(), contract_bias)
    return laid_out_like(y.view(x.shape), x), xn, statistics, hidden


@kernels("transition_backward")
def backward(
    dy: Tensor, xn: Tensor, statistics: Tensor, hidden: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor,
    expand_weight: Tensor, contract_weight: Tensor, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x and of the six parameters, in the order of the operator's arguments."""
    return (
        x.new_empty(x.shape), torch.empty_like(norm_weight), torch.empty_like(norm_bias),
        x.new_empty(expand_weight.shape), x.new_empty(expand_weight.shape[0]), x.new_empty(contract_weight.shape),
        x.new_empty(contract_weight.shape[0]),
    )  # fmt: skip


@backward.composed
def compute_backward(
    dy: Tensor, xn: Tensor, statistics: Tensor, hidden: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor,
    expand_weight: Tensor, contract_weight: Tensor, residual: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    with without_autocast(x), SideStream(x) as side_stream:
        rows, x_rows = dy.reshape(xn.shape), x.reshape(xn.shape)
        dcontract_weight = side_stream(product, rows.t(), hidden)
        if not residual:  # with a residual, the norm's backward sums it
            dcontract_bias = side_stream(sum_over, rows, (0,), False)
        dhidden, dexpand_bias = finish_gradient(product(rows, contract_weight), hidden, "relu")
        dexpand_weight, dxn = side_stream(product, dhidden.t(), xn), product(dhidden, expand_weight)
        if residual:
            dx, dnorm_weight, dnorm_bias, dcontract_bias = norm_branch_backward(
                dxn, x_rows, norm_weight, norm_bias, statistics, rows
            )
        else:
            dx, dnorm_weight, dnorm_bias = norm_backward(dxn, x_rows, norm_weight, norm_bias, statistics, True, True)
    return (
        dx.view(x.shape), dnorm_weight, dnorm_bias, dexpand_weight, dexpand_bias, dcontract_weight, dcontract_bias,
    )  # fmt: skip


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, norm_weight, norm_bias, expand_weight, _, contract_weight, _, _, context.residual = inputs
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(*output[1:], x, norm_weight, norm_bias, expand_weight, contract_weight)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # y has no gradient
        return (None,) * 9
    made = (*backward(dy, *context.saved_tensors, context.residual), None, None)
    return tuple(one if wanted else None for one, wanted in zip(made, context.needs_input_grad, strict=False))


def takes(x: Tensor, *_: object) -> bool:
    """PyTorch computes float64 on a GPU."""
    return not (x.is_cuda and x.dtype == torch.float64)


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient,
    options=Options(takes=takes, autocasts=True, returns="first", residual="fused"),
)  # fmt: skip
def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    expand_weight: Tensor,
    expand_bias: Tensor,
    contract_weight: Tensor,
    contract_bias: Tensor,
    eps: float = 1e-5,
    *,
    residual: bool = False,
) -> Tensor:
    """contract(relu(expand(norm(x)))), a layer norm and two linear layers over the last dimension of x.

    - `x`: [..., channels]. `norm_weight`, `norm_bias`: [channels].
    - `expand_weight`: [hidden, channels], `expand_bias`: [hidden].
    - `contract_weight`: [channels, hidden], `contract_bias`: [channels].
    - `residual=True`: returns x + y instead of y. The addition costs no pass of its own.

    All tensors have one dtype. GEMMs follow PyTorch's own setting for tf32.
    """
    parameters = {
        "norm_weight": norm_weight, "norm_bias": norm_bias, "expand_weight": expand_weight, "expand_bias": expand_bias,
        "contract_weight": contract_weight, "contract_bias": contract_bias,
    }  # fmt: skip
    require_floating(NAME, x=x, **parameters)
    require_dimensions(NAME, "x", x, at_least=1)
    require_dimensions(NAME, "expand_weight", expand_weight, at_least=2)
    channels, hidden = x.shape[-1], expand_weight.shape[0]
    if channels == 0 or hidden == 0:
        raise ValueError(
            f"{NAME}: x has {channels} channels and expand_weight {hidden} rows, but both must be positive"
        )
    shapes = {
        "norm_weight": (channels,), "norm_bias": (channels,), "expand_weight": (hidden, channels),
        "expand_bias": (hidden,), "contract_weight": (channels, hidden), "contract_bias": (channels,),
    }  # fmt: skip
    for name, tensor in parameters.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{NAME}: {name} has shape {tuple(tensor.shape)}, but must have {shapes[name]}")
        require_same_dtype(NAME, name, tensor, "x", x)
    require_same_device(NAME, x=x, **parameters)
    require_number(NAME, "eps", eps, at_least=0.0)
    if not isinstance(residual, bool):
        raise TypeError(f"{NAME}: residual is {residual!r}, but must be True or False")
    return x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    channels, hidden = case.channels, case.hidden

    def drawn(*shape: int) -> Tensor:
        return layout(torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5)

    return {
        "x": layout(torch.randn(case.batch, case.rows, channels, dtype=dtype, device=device)),
        "norm_weight": layout(1 + torch.randn(channels, dtype=dtype, device=device) / 4), "norm_bias": drawn(channels),
        "expand_weight": drawn(hidden, channels), "expand_bias": drawn(hidden),
        "contract_weight": drawn(channels, hidden), "contract_bias": drawn(channels),
        "eps": 1e-5, "residual": case.name in WITH_RESIDUAL,
    }  # fmt: skip


def cost(case: Case, dtype: torch.dtype) -> Cost:
    rows = case.batch * case.rows
    x = rows * case.channels * dtype.itemsize
    weights = 2 * case.channels * case.hidden * dtype.itemsize
    flops = 4 * rows * case.channels * case.hidden
    return Cost(
        forward=Work(bytes=2 * x + weights, flops=flops),
        # Reads x and dy, writes dx; every GEMM of the forward has two in the backward.
        backward=Work(bytes=3 * x + 2 * weights, flops=2 * flops),
    )


WITH_RESIDUAL = ("odd residual", "pairs", "alignment")  # cases that return x + y

SPEC = Spec(
    name=NAME,
    op=transition,
    reference=reference,
    roundings=6,  # norm, two GEMMs, relu's input, the sum; gradients have as many
    formula="y = relu(norm(x)·w₁ᵀ + b₁)·w₂ᵀ + b₂",
    cases=[
        Case("one", rows=1, batch=1, channels=1, hidden=1),
        Case("odd", rows=7, batch=2, channels=5, hidden=13),
        Case("odd residual", rows=5, batch=3, channels=9, hidden=7),
        Case("past a block", rows=70, batch=1, channels=66, hidden=130),
        Case("pairs", rows=256 * 256, batch=1, channels=128, hidden=512),
        Case("alignment", rows=128 * 64, batch=4, channels=64, hidden=256),
        Case("wide", rows=128 * 256, batch=1, channels=256, hidden=1024),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
