"""Linear layers that share their input; GEMMs add the gradients of that input.

Without this module each layer writes its own gradient of the input, and PyTorch adds them in separate passes: three
elements move for each element of every layer but the first. Here one GEMM sums over all layers
(`ops/matmul/internal/sum_of_products.py`). Where the BLAS is faster, the first GEMM writes the gradient and the others
add to it, which reads it once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from tilesmith.ops.matmul.internal.sum_of_products import linear_product, sum_of_products
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import is_transformed
from tilesmith.ops.runtime.precision import autocasted
from tilesmith.patch.gradients.plain_modules import PLAIN, applying, linear_parameters


def projections(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """Return the result of each layer for x."""
    operands = joined_operands(x, *layers) if x.requires_grad else None
    if operands is None:
        return tuple(layer(x) for layer in layers)
    projected: tuple[Tensor, ...] = _projected(*operands)
    return projected


def joined_operands(x: Tensor, *layers: Any) -> tuple[Tensor | None, ...] | None:
    """Return x, and weight and bias of every layer, in the dtype of the GEMM.

    Return None where no gradient is wanted or the layers must be called as modules.
    """
    if not torch.is_grad_enabled() or type(x) not in PLAIN or is_transformed():
        return None
    if torch.compiler.is_compiling() and not dispatch.kernels_can_run(x):
        return None
    given: list[Tensor | None] = [x]  # loops without generators: every layer comes here at every step
    for layer in layers:
        parameters = linear_parameters(layer)
        if parameters is None:
            return None
        given += parameters
    operands = autocasted(tuple(given))
    dtype = operands[0].dtype
    for one in operands:
        if one is not None and one.dtype is not dtype:
            return None
    return operands


class _Projections(Function):
    """Several linear layers of x; its arguments are x, and weight and bias of each layer."""

    @staticmethod
    def forward(context: Any, x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = parameters[::2], parameters[1::2]
        context.save_for_backward(x, *weights)
        context.set_materialize_grads(False)  # an unused result has no gradient
        return tuple(linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = context.saved_tensors
        dx, dparameters = linear_gradients(x, weights, gradients, context.needs_input_grad)
        return dx, *dparameters


_projected = applying(_Projections)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x · weightᵀ + bias, without a gradient."""
    if bias is not None:
        return F.linear(x, weight, bias)
    y: Tensor = linear_product(x, weight)
    return y


def linear_gradients(
    x: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradient of x, and those of weight and bias of each layer in turn; None for each that is not needed.

    `needed` has the same order: x, weight, bias, weight, bias, ...
    """
    rows = x.reshape(-1, x.shape[-1])
    pairs: list[tuple[Tensor, Tensor]] = []
    dparameters: list[Tensor | None] = []
    for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        to_weight, to_bias = needed[1 + 2 * place : 3 + 2 * place]
        if gradient is None:
            dparameters += None, None
            continue
        dy = gradient.reshape(-1, gradient.shape[-1])
        pairs.append((dy, weight))
        dparameters += _weight_gradient(weight, dy, rows) if to_weight else None, dy.sum(0) if to_bias else None
    dx = sum_of_products(pairs).view(x.shape) if pairs and needed[0] else None
    return dx, dparameters


def _weight_gradient(weight: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    """Return dyᵀ · x in the layout of the weight: for another layout PyTorch would copy it into the parameter's."""
    if weight.stride(0) == 1 and weight.stride(1) != 1:  # GPT-2's linear layers, seen as [outputs, inputs]
        return sum_of_products([(x.t(), dy)]).t()
    return sum_of_products([(dy.t(), x)])
