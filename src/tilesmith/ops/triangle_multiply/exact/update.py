"""Single precision that must be exact: whole products, and one pass between two of them.

In parts of bf16, as tensor cores take it, a few rows fill the registers of the kernels that do everything at once. So
here the matrices lie in memory: z normed, all that is projected from it by one product, a and b, their product, that
normed, and the output before its gate. All of them stay for the backward, 11 times z with as many hidden channels as
channels, and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.forward import forward as norm_forward
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.side_stream import SideStream
from tilesmith.ops.runtime.without_autocast import without_autocast
from tilesmith.ops.triangle_multiply.exact.passes import (
    gate_gradient,
    gated,
    output_gate_gradient,
    output_gated,
    product_norm,
    product_norm_gradient,
)
from tilesmith.ops.triangle_multiply.problem import matrices_shape

Tensors = tuple[Tensor, ...]


@kernels("triangle_multiply_exact_forward")
def forward(
    z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None,
    output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None,
    output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, or z plus it, and what the backward needs: zn, the weights that it is projected by, projections, a, b, x, xn
    and the output before its gate."""
    channels, hidden = output_weight.shape
    pairs, outputs, shape = z.shape[:3], 4 * hidden + channels, matrices_shape(z.shape, hidden)
    return (
        z.new_empty(z.shape), z.new_empty(z.shape), z.new_empty(outputs, channels), z.new_empty(*pairs, outputs),
        z.new_empty(shape), z.new_empty(shape), z.new_empty(*shape[:3], z.shape[2]), z.new_empty(*pairs, hidden),
        z.new_empty(z.shape),
    )  # fmt: skip


@forward.composed
def compute_forward(
    z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None,
    output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None,
    output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool, eps: float, residual: bool,
) -> Tensors:  # fmt: skip
    projection_bias, gate_bias, output_bias, output_gate_bias = _without_gaps(
        projection_bias, gate_bias, output_bias, output_gate_bias
    )
    hidden = output_weight.shape[1]
    with without_autocast(z):
        z = z.contiguous()
        with SideStream(z) as side_stream:
            weights = side_stream(torch.cat, (projection_weight, gate_weight, output_gate_weight))
            zn = norm_forward(z, norm_weight, norm_bias, eps)
        projections = _rows_times(zn, weights.t())
        a, b = gated(projections, mask, projection_bias, gate_bias, hidden)
        x = _times(a, _turned(b)) if outgoing else _times(_turned(a), b)
        xn = product_norm(x, *_without_gaps(output_norm_weight, output_norm_bias), eps)
        output = _rows_times(xn, output_weight.t())
        y = output_gated(output, projections, output_bias, output_gate_bias, z if residual else None, hidden)
    return y, zn, weights, projections, a, b, x, xn, output


@kernels("triangle_multiply_exact_backward")
def backward(
    dy: Tensor, zn: Tensor, weights: Tensor, projections: Tensor, a: Tensor, b: Tensor, x: Tensor, xn: Tensor,
    output: Tensor, z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_bias: Tensor | None, gate_bias: Tensor | None, output_norm_weight: Tensor, output_weight: Tensor,
    output_bias: Tensor | None, output_gate_bias: Tensor | None, outgoing: bool, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dz; the gradients of projection, gate and output gate weights, one under the other, and of their biases; those of
    the output weight and its bias; those of the norm's weight and its bias; and those of the output norm's in one."""
    (outputs, channels), hidden = weights.shape, output_weight.shape[1]
    return (
        z.new_empty(z.shape), z.new_empty(outputs, channels), z.new_empty(outputs), z.new_empty(channels, hidden),
        z.new_empty(channels), z.new_empty(channels), z.new_empty(channels), z.new_empty(2 * hidden),
    )  # fmt: skip


@backward.composed
def compute_backward(
    dy: Tensor, zn: Tensor, weights: Tensor, projections: Tensor, a: Tensor, b: Tensor, x: Tensor, xn: Tensor,
    output: Tensor, z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_bias: Tensor | None, gate_bias: Tensor | None, output_norm_weight: Tensor, output_weight: Tensor,
    output_bias: Tensor | None, output_gate_bias: Tensor | None, outgoing: bool, eps: float, residual: bool,
) -> Tensors:  # fmt: skip
    projection_bias, gate_bias, output_bias, output_gate_bias = _without_gaps(
        projection_bias, gate_bias, output_bias, output_gate_bias
    )
    dy = dy.contiguous()
    with without_autocast(z), SideStream(z) as side_stream:
        doutput, doutput_bias = output_gate_gradient(
            dy, output, projections, output_bias, output_gate_bias, output_weight.shape[1]
        )
        doutput_weight = side_stream(_weight_gradient, doutput, xn)
        dxn = _rows_times(doutput, output_weight)
        dx, dproduct_norm = product_norm_gradient(dxn, x, *_without_gaps(output_norm_weight), eps)
        if outgoing:
            da, db = _times(dx, b), _times(_turned(dx), a)
        else:
            da, db = _times(b, _turned(dx)), _times(a, dx)
        dprojections, dbiases = gate_gradient(
            dy, da, db, output, projections, mask, projection_bias, gate_bias, output_bias, output_gate_bias
        )
        dweights, dzn = side_stream(_weight_gradient, dprojections, zn), _rows_times(dprojections, weights)
        dz, dnorm_weight, dnorm_bias = norm_backward(
            dzn, z.contiguous(), norm_weight, norm_bias, eps, True, True, dy if residual else None
        )
    return dz, dweights, dbiases, doutput_weight, doutput_bias, dnorm_weight, dnorm_bias, dproduct_norm


def save(context: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    (
        z, mask, norm_weight, norm_bias, _, projection_bias, _, gate_bias, output_norm_weight, _, output_weight,
        output_bias, _, output_gate_bias, *context.numbers,
    ) = inputs  # fmt: skip
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(
        *output[1:], z, mask, norm_weight, norm_bias, projection_bias, gate_bias, output_norm_weight, output_weight,
        output_bias, output_gate_bias,
    )  # fmt: skip


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # nothing came of the output
        return (None,) * 17
    dz, dweights, dbiases, doutput_weight, doutput_bias, dnorm_weight, dnorm_bias, dproduct_norm = backward(
        dy, *context.saved_tensors, *context.numbers
    )
    channels, hidden = doutput_weight.shape
    rows = (2 * hidden, 2 * hidden, channels)
    (dprojection, dgate, doutput_gate), (dprojection_bias, dgate_bias, doutput_gate_bias) = (
        one.split(rows) for one in (dweights, dbiases)
    )
    gradients = (
        dz, None, dnorm_weight, dnorm_bias, dprojection, dprojection_bias, dgate, dgate_bias,
        *dproduct_norm.split(hidden), doutput_weight, doutput_bias, doutput_gate, doutput_gate_bias, None, None, None,
    )  # fmt: skip
    return tuple(one if wanted else None for one, wanted in zip(gradients, context.needs_input_grad, strict=False))


def _rows_times(of_pairs: Tensor, matrix: Tensor) -> Tensor:
    """The channels of every pair times a matrix."""
    return product(of_pairs.flatten(0, 2), matrix).view(*of_pairs.shape[:3], matrix.shape[1])


def _weight_gradient(gradient: Tensor, of_pairs: Tensor) -> Tensor:
    return product(gradient.flatten(0, 2).t(), of_pairs.flatten(0, 2))


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Of each channel's matrices, which may be padded, and the result without padding."""
    n = min(a.shape[-2:])
    left, right = (one[..., :n, :n].flatten(0, 1) for one in (a, b))
    return product(left, right).view(*a.shape[:2], n, n)


def _turned(matrices: Tensor) -> Tensor:
    return matrices.transpose(-1, -2)


def _without_gaps(*vectors: Tensor | None) -> list[Any]:
    return [None if one is None else one.contiguous() for one in vectors]
