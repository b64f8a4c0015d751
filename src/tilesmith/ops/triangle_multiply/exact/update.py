"""The update where single precision must be exact: separate GEMMs, and one elementwise pass between two of them.

The fused kernels split single precision into bf16 parts, and a few rows then fill the registers. So here the
intermediate matrices are in memory: normed z, everything projected from it by one GEMM, a and b, their product, that
normed, and the output before its gate. All of them stay for the backward, 11 times z with as many hidden channels as
channels, and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import NamedTuple  # of typing's, Python 3.10 has no generic ones

from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.forward import forward as norm_forward
from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.triangle_multiply.exact.passes import (
    Biases,
    gate_gradient,
    gated,
    output_gate_gradient,
    output_gated,
    product_norm,
    product_norm_gradient,
)
from tilesmith.ops.triangle_multiply.parameters import STACKED, Parameters, gradients_of_inputs, no_gradients
from tilesmith.ops.triangle_multiply.problem import matrices_shape

Value = TypeVar("Value")


class Intermediates(NamedTuple, Generic[Value]):
    """The tensors that the forward keeps for the backward."""

    zn: Value  # [batch, n, n, channels]
    statistics: Value  # [batch · n · n, 2], of the norm of z
    weights: Value  # [4 · hidden + channels, channels]: of projection, gate and output gate
    projections: Value  # [batch, n, n, 4 · hidden + channels]: zn · weightsᵀ
    a: Value  # [batch, hidden, n, padded n]
    b: Value  # [batch, hidden, n, padded n]
    x: Value  # [batch, hidden, n, n]
    xn: Value  # [batch, n, n, hidden]
    output: Value  # [batch, n, n, channels]: before its gate


@kernels("triangle_multiply_exact_forward")
@flat_arguments
def forward(
    z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, residual: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, or z + y, and the Intermediates."""
    channels, hidden = parameters.output_weight.shape
    pairs, outputs, shape = z.shape[:3], 4 * hidden + channels, matrices_shape(z.shape, hidden)
    single = torch.promote_types(z.dtype, torch.float32)
    return z.new_empty(z.shape), *Intermediates(
        zn=z.new_empty(z.shape), statistics=z.new_empty(pairs.numel(), 2, dtype=single),
        weights=z.new_empty(outputs, channels), projections=z.new_empty(*pairs, outputs),
        a=z.new_empty(shape), b=z.new_empty(shape), x=z.new_empty(*shape[:3], z.shape[2]),
        xn=z.new_empty(*pairs, hidden), output=z.new_empty(z.shape),
    )  # fmt: skip


@forward.composed
@flat_arguments
def compute_forward(
    z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, residual: bool
) -> tuple[Tensor, ...]:
    biases = _biases_of(parameters)
    hidden = parameters.output_weight.shape[1]
    with without_autocast(z):
        z = z.contiguous()
        with SideStream(z) as side_stream:
            weights = side_stream(torch.cat, tuple(getattr(parameters, f"{layer}_weight") for layer in STACKED))
            zn, statistics = norm_forward(z, parameters.norm_weight, parameters.norm_bias, eps, True)
        projections = _rows_times(zn, weights.t())
        a, b = gated(projections, mask, biases.projection_bias, biases.gate_bias, hidden)
        x = _times(a, _transposed(b)) if outgoing else _times(_transposed(a), b)
        norm = parameters.output_norm_weight.contiguous(), parameters.output_norm_bias.contiguous()
        xn = product_norm(x, *norm, eps)
        output = _rows_times(xn, parameters.output_weight.t())
        addend = z if residual else None
        y = output_gated(output, projections, biases.output_bias, biases.output_gate_bias, addend, hidden)
    return y, *Intermediates(zn, statistics, weights, projections, a, b, x, xn, output)


@kernels("triangle_multiply_exact_backward")
@flat_arguments
def backward(
    dy: Tensor, kept: Intermediates[Tensor], z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor],
    outgoing: bool, eps: float, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dz; the gradients of the STACKED layers' weights and biases, each one below the other; those of the output
    layer's weight and bias, of the norm's weight and bias, and of the output norm's, concatenated."""
    (outputs, channels), hidden = kept.weights.shape, parameters.output_weight.shape[1]
    return (
        z.new_empty(z.shape), z.new_empty(outputs, channels), z.new_empty(outputs), z.new_empty(channels, hidden),
        z.new_empty(channels), z.new_empty(channels), z.new_empty(channels), z.new_empty(2 * hidden),
    )  # fmt: skip


@backward.composed
@flat_arguments
def compute_backward(
    dy: Tensor, kept: Intermediates[Tensor], z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor],
    outgoing: bool, eps: float, residual: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    biases = _biases_of(parameters)
    output_weight = parameters.output_weight
    dy = dy.contiguous()
    with without_autocast(z), SideStream(z) as side_stream:
        doutput, doutput_bias = output_gate_gradient(
            dy, kept.output, kept.projections, biases.output_bias, biases.output_gate_bias, output_weight.shape[1]
        )
        doutput_weight = side_stream(_weight_gradient, doutput, kept.xn)
        dxn = _rows_times(doutput, output_weight)
        dx, doutput_norm = product_norm_gradient(dxn, kept.x, parameters.output_norm_weight.contiguous(), eps)
        if outgoing:
            da, db = _times(dx, kept.b), _times(_transposed(dx), kept.a)
        else:
            da, db = _times(kept.b, _transposed(dx)), _times(kept.a, dx)
        dprojections, dbiases = gate_gradient(dy, da, db, kept.output, kept.projections, mask, *biases)
        dweights = side_stream(_weight_gradient, dprojections, kept.zn)
        dzn = _rows_times(dprojections, kept.weights)
        dz, dnorm_weight, dnorm_bias = norm_backward(
            dzn,
            z.contiguous(),
            parameters.norm_weight,
            parameters.norm_bias,
            kept.statistics,
            True,
            True,
            dy if residual else None,
        )
    return dz, dweights, dbiases, doutput_weight, doutput_bias, dnorm_weight, dnorm_bias, doutput_norm


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, outgoing, eps, residual = inputs
    context.numbers = outgoing, eps, residual
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(*output[1:], *tensors)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return no_gradients(context)
    dz, dweights, dbiases, doutput_weight, doutput_bias, dnorm_weight, dnorm_bias, doutput_norm = backward(
        dy, *context.saved_tensors, *context.numbers
    )
    channels, hidden = doutput_weight.shape
    rows = (2 * hidden, 2 * hidden, channels)
    found = {f"{layer}_weight": one for layer, one in zip(STACKED, dweights.split(rows), strict=True)}
    found |= {f"{layer}_bias": one for layer, one in zip(STACKED, dbiases.split(rows), strict=True)}
    doutput_norm_weight, doutput_norm_bias = doutput_norm.split(hidden)
    dparameters = Parameters(
        norm_weight=dnorm_weight, norm_bias=dnorm_bias, output_norm_weight=doutput_norm_weight,
        output_norm_bias=doutput_norm_bias, output_weight=doutput_weight, output_bias=doutput_bias, **found,
    )  # fmt: skip
    return gradients_of_inputs(context, dz, dparameters)


def _biases_of(parameters: Parameters[Tensor]) -> Biases[Tensor]:
    """Return the biases of projections and gates, contiguous."""
    biases = (getattr(parameters, name) for name in Biases._fields)
    return Biases(*(None if bias is None else bias.contiguous() for bias in biases))


def _rows_times(of_pairs: Tensor, matrix: Tensor) -> Tensor:
    """Return [batch, n, n, channels] times a matrix."""
    return product(of_pairs.flatten(0, 2), matrix).view(*of_pairs.shape[:3], matrix.shape[1])


def _weight_gradient(gradient: Tensor, of_pairs: Tensor) -> Tensor:
    """Return the sum over pairs of gradient ⊗ of_pairs."""
    return product(gradient.flatten(0, 2).t(), of_pairs.flatten(0, 2))


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of each channel's matrices without padding. The factors may be padded."""
    n = min(a.shape[-2:])
    left, right = (one[..., :n, :n].flatten(0, 1) for one in (a, b))
    return product(left, right).view(*a.shape[:2], n, n)


def _transposed(matrices: Tensor) -> Tensor:
    return matrices.transpose(-1, -2)
