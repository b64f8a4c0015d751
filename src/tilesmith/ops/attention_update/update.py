"""The update from one end to the other, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.attention.problem import lse_shape
from tilesmith.ops.attention_update.gate_passes import SIDES, gated, projections_gradient
from tilesmith.ops.edge_norm import backward as edge_norm_backward
from tilesmith.ops.edge_norm import forward as edge_norm_forward
from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.backward import branch_backward as norm_branch_backward
from tilesmith.ops.layer_norm.forward import forward as norm_forward
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_added
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.side_stream import Beside
from tilesmith.ops.runtime.without_autocast import as_given
from tilesmith.ops.sum import forward as summed
from tilesmith.ops.triangle_attention.operator import backward as attention_backward
from tilesmith.ops.triangle_attention.operator import forward as attention_forward

Tensors = tuple[Tensor, ...]


@kernels("attention_update_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, edge_weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, heads: int, along_columns: bool, eps: float, tf32: bool, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The update, or x plus it, and what the backward needs: xn, the biases made of it, the weights of all projections,
    these, what attention gives and its statistics, and what the gate leaves of it."""
    (width, channels), (batch, rows, columns) = gate_weight.shape, x.shape[:3]
    places = batch * rows * columns
    sequences, length = (rows, columns) if along_columns else (columns, rows)
    single = torch.promote_types(x.dtype, torch.float32)
    of_edges = (0,) if edge_weight is None else (batch, heads, length, length)
    statistics = lse_shape(torch.Size((batch, sequences, heads, length, width // heads)))
    return (
        x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(of_edges), x.new_empty(SIDES * width, channels),
        x.new_empty(places, SIDES * width), x.new_empty(places, width), x.new_empty(statistics, dtype=single),
        x.new_empty(places, width),
    )  # fmt: skip


@forward.composed
def compute_forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, edge_weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, heads: int, along_columns: bool, eps: float, tf32: bool, residual: bool,
) -> Tensors:  # fmt: skip
    with as_given(x):
        x = x.contiguous()
        with Beside(x) as beside:
            weights = beside(torch.cat, (query_key_value_weight, gate_weight))
            if edge_weight is None:
                xn, made = norm_forward(x, norm_weight, norm_bias, eps), x.new_empty(0)
            else:
                xn, made = edge_norm_forward(x, norm_weight, norm_bias, edge_weight, not along_columns, eps)
                bias = made
        projections = product(xn.flatten(0, 2), weights.t())
        q, k, v = _heads_of(projections, x, heads)
        attended, statistics = attention_forward(q, k, v, bias, mask, along_columns, None, tf32)
        attended = attended.reshape(projections.shape[0], gate_weight.shape[0])
        opened = gated(attended, projections, gate_bias.contiguous())
        added = x.flatten(0, 2) if residual else None
        y = product_added(added, opened, output_weight.t(), output_bias).view(x.shape)
    return y, xn, made, weights, projections, attended, statistics, opened


def _heads_of(projections: Tensor, x: Tensor, heads: int) -> Tensors:
    """Queries, keys and values where they lie, as a grid."""
    width = projections.shape[1] // SIDES
    return projections.view(*x.shape[:3], SIDES, heads, width // heads).unbind(3)[:3]


@kernels("attention_update_backward")
def backward(
    dupdate: Tensor, xn: Tensor, made: Tensor, weights: Tensor, projections: Tensor, attended: Tensor,
    statistics: Tensor, opened: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, gate_bias: Tensor,
    output_weight: Tensor, edge_weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, heads: int,
    along_columns: bool, eps: float, tf32: bool, residual: bool, bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dx; the gradients of the norm's weight and bias; of a bias that was given, empty where it is not wanted; of all
    projections' weights and the gate's bias; and of the output's weight and bias. Where there are edges, the fourth has
    as rows those of the norm's weight and bias, of the edges' weight, and if x is added that of the output's bias."""
    channels = x.shape[-1]
    has_edges = edge_weight is not None
    of_norm, of_edges = ((0,), (2 + heads + residual, channels)) if has_edges else ((channels,), (0,))
    of_output = (0,) if has_edges and residual else (channels,)
    of_bias = bias.shape if bias is not None and bias_gradient else (0,)
    return (
        x.new_empty(x.shape), x.new_empty(of_norm), x.new_empty(of_norm), x.new_empty(of_edges), x.new_empty(of_bias),
        x.new_empty(weights.shape), x.new_empty(gate_bias.shape), x.new_empty(output_weight.shape),
        x.new_empty(of_output),
    )  # fmt: skip


@backward.composed
def compute_backward(
    dupdate: Tensor, xn: Tensor, made: Tensor, weights: Tensor, projections: Tensor, attended: Tensor,
    statistics: Tensor, opened: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, gate_bias: Tensor,
    output_weight: Tensor, edge_weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, heads: int,
    along_columns: bool, eps: float, tf32: bool, residual: bool, bias_gradient: bool,
) -> Tensors:  # fmt: skip
    has_edges = edge_weight is not None
    with as_given(x), Beside(x) as beside:
        x, gate_bias, rows = x.contiguous(), gate_bias.contiguous(), dupdate.reshape(opened.shape[0], x.shape[-1])
        dnorm_weight, dnorm_bias, dvectors, doutput_bias = (x.new_empty(0) for _ in range(4))
        doutput_weight = beside(product, rows.t(), opened)
        if not residual:  # else it comes with the norm's gradient
            doutput_bias = beside(summed, rows, (0,), False)
        dgated = product(rows, output_weight)
        q, k, v = _heads_of(projections, x, heads)
        dq, dk, dv, dbias = attention_backward(
            gated(dgated, projections, gate_bias).view(q.shape), attended.view(q.shape), statistics,
            has_edges or bias_gradient, q, k, v, made if has_edges else bias, mask, along_columns, None, tf32,
        )  # fmt: skip
        dprojections, dgate_bias = projections_gradient(
            dgated, attended, projections, gate_bias, *(one.reshape(attended.shape) for one in (dq, dk, dv))
        )
        dweights = beside(product, dprojections.t(), xn.flatten(0, 2))
        dxn = product(dprojections, weights).view(x.shape)
        dsum = rows.contiguous().view(x.shape) if residual else None
        if edge_weight is not None:
            dx, dvectors = edge_norm_backward(
                dxn, dbias, x, norm_weight, norm_bias, edge_weight, not along_columns, eps, dsum
            )  # fmt: skip
        elif dsum is not None:
            dx, dnorm_weight, dnorm_bias, doutput_bias = norm_branch_backward(
                dxn, x, norm_weight, norm_bias, eps, dsum
            )  # fmt: skip
        else:
            dx, dnorm_weight, dnorm_bias = norm_backward(dxn, x, norm_weight, norm_bias, eps, True, True)
        dbias = dbias if bias_gradient else x.new_empty(0)
    return dx, dnorm_weight, dnorm_bias, dvectors, dbias, dweights, dgate_bias, doutput_weight, doutput_bias


def save(context: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    x, norm_weight, norm_bias, _, _, gate_bias, output_weight, _, edge_weight, bias, mask, *context.numbers = inputs
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(
        *output[1:], x, norm_weight, norm_bias, gate_bias, output_weight, edge_weight, bias, mask
    )  # fmt: skip


def gradient(context: Any, dupdate: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dupdate is None:  # nothing came of the update
        return (None,) * 16
    wants_bias = bool(context.needs_input_grad[9])
    dx, dnorm_weight, dnorm_bias, dvectors, dbias, dweights, dgate_bias, doutput_weight, doutput_bias = backward(
        dupdate, *context.saved_tensors, *context.numbers, wants_bias
    )
    if dvectors.numel():
        dnorm_weight, dnorm_bias = dvectors[0], dvectors[1]
        doutput_bias = doutput_bias if doutput_bias.numel() else dvectors[-1]
    heads = context.numbers[0]
    dquery_key_value, dgate = dweights.split((3 * dgate_bias.shape[0], dgate_bias.shape[0]))
    gradients = (
        dx, dnorm_weight, dnorm_bias, dquery_key_value, dgate, dgate_bias, doutput_weight, doutput_bias,
        dvectors[2 : 2 + heads], dbias, *(None,) * 6,
    )  # fmt: skip
    return tuple(one if wanted else None for one, wanted in zip(gradients, context.needs_input_grad, strict=False))
