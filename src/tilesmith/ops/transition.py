"""A norm and two layers with a rectifier between them: y = relu(norm(x)·w₁ᵀ + b₁)·w₂ᵀ + b₂, or x + y.

What PyTorch would do in passes of their own is done with others here: the rectifier forward with the first product, its
gradient with the sum for the first bias; x is added with the second, and its gradient with the norm's, which then also
sums up that of the second bias.
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
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_added, rectified
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.side_stream import SideStream
from tilesmith.ops.runtime.without_autocast import without_autocast
from tilesmith.ops.sum import forward as summed


def reference(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool = False,
) -> Tensor:  # fmt: skip
    hidden = torch.relu(F.linear(layer_norm(x, norm_weight, norm_bias, eps), expand_weight, expand_bias))
    y = F.linear(hidden, contract_weight, contract_bias)
    return x + y if residual else y


@kernels("feed_forward_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The result, and what the backward needs as matrices: the norm, and what the rectifier lets through."""
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape), x.new_empty(rows, x.shape[-1]), x.new_empty(rows, expand_weight.shape[0])


@forward.composed
def compute_forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    with without_autocast(x):
        rows = x.reshape(-1, x.shape[-1])
        xn = norm_forward(rows, norm_weight, norm_bias, eps)
        hidden = rectified(xn, expand_weight.t(), expand_bias)
        y = product_added(rows if residual else None, hidden, contract_weight.t(), contract_bias)
    return y.view(x.shape), xn, hidden


@kernels("feed_forward_backward")
def backward(
    dy: Tensor, xn: Tensor, hidden: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor,
    contract_weight: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """In the order of the arguments."""
    return (
        x.new_empty(x.shape), torch.empty_like(norm_weight), torch.empty_like(norm_bias),
        x.new_empty(expand_weight.shape), x.new_empty(expand_weight.shape[0]), x.new_empty(contract_weight.shape),
        x.new_empty(contract_weight.shape[0]),
    )  # fmt: skip


@backward.composed
def compute_backward(
    dy: Tensor, xn: Tensor, hidden: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor,
    contract_weight: Tensor, eps: float, residual: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    with without_autocast(x), SideStream(x) as side_stream:
        rows, x_rows = dy.reshape(xn.shape), x.reshape(xn.shape)
        dcontract_weight = side_stream(product, rows.t(), hidden)
        if not residual:  # else it comes with the norm's gradient
            dcontract_bias = side_stream(summed, rows, (0,), False)
        dhidden, dexpand_bias = finish_gradient(product(rows, contract_weight), hidden, "relu")
        dexpand_weight, dxn = side_stream(product, dhidden.t(), xn), product(dhidden, expand_weight)
        if residual:
            dx, dnorm_weight, dnorm_bias, dcontract_bias = norm_branch_backward(
                dxn, x_rows, norm_weight, norm_bias, eps, rows
            )
        else:
            dx, dnorm_weight, dnorm_bias = norm_backward(dxn, x_rows, norm_weight, norm_bias, eps, True, True)
    return (
        dx.view(x.shape), dnorm_weight, dnorm_bias, dexpand_weight, dexpand_bias, dcontract_weight, dcontract_bias,
    )  # fmt: skip


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, norm_weight, norm_bias, expand_weight, _, contract_weight, _, *context.numbers = inputs
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(*output[1:], x, norm_weight, norm_bias, expand_weight, contract_weight)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # nothing came of the result
        return (None,) * 9
    made = (*backward(dy, *context.saved_tensors, *context.numbers), None, None)
    return tuple(one if wanted else None for one, wanted in zip(made, context.needs_input_grad, strict=False))


def takes(x: Tensor, *_: object) -> bool:
    return not (x.is_cuda and x.dtype == torch.float64)


@operator(
    "feed_forward", reference=reference, forward=forward, save=save, gradient=gradient,
    options=Options(takes=takes, autocasts=True, returns="first", residual="fused"),
)  # fmt: skip
def feed_forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, *, residual: bool = False,
) -> Tensor:  # fmt: skip
    """contract(relu(expand(norm(x)))), and x besides if `residual`; of tensors of one dtype that a module has made for
    each other."""
    return x
