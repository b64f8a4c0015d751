"""The whole update, forward and backward: composed of kernels and GEMMs."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Sequence
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
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_with_addend
from tilesmith.ops.runtime.composing.laid_out import laid_out_like
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.kernels import Kernels, kernels
from tilesmith.ops.sum import forward as summed
from tilesmith.ops.triangle_attention.operator import backward as attention_backward
from tilesmith.ops.triangle_attention.operator import forward as attention_forward

Tensors = tuple[Tensor, ...]


@kernels("attention_update_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, edge_weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, heads: int, along_columns: bool, eps: float, tf32: bool, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the update, or x plus the update, and what the backward needs.

    These are xn, the norm's statistics, the biases from edge_weight, the weights of all projections, the projections,
    the output of attention, its lse, and that output after the gate.
    """
    (width, channels), (batch, rows, columns) = gate_weight.shape, x.shape[:3]
    places = batch * rows * columns
    sequences, length = (rows, columns) if along_columns else (columns, rows)
    single = torch.promote_types(x.dtype, torch.float32)
    of_norm, of_edges = ((places, 2), (0,)) if edge_weight is None else ((0,), (batch, heads, length, length))
    lse = lse_shape(torch.Size((batch, sequences, heads, length, width // heads)))
    return (
        torch.empty_like(x), x.new_empty(x.shape), x.new_empty(of_norm, dtype=single), x.new_empty(of_edges),
        x.new_empty(SIDES * width, channels), x.new_empty(places, SIDES * width), x.new_empty(places, width),
        x.new_empty(lse, dtype=single), x.new_empty(places, width),
    )  # fmt: skip


def _names(kernels: Kernels) -> Callable[[Sequence[Any]], Any]:
    """Return a function that gives the arguments of a torch operator the names in its schema."""
    names = tuple(inspect.signature(kernels.fake).parameters)
    # torch.compile traces a namedtuple, but in PyTorch 2.11 no SimpleNamespace.
    named = namedtuple("Arguments", names, defaults=(None,) * len(names))  # type: ignore[misc]  # the schema's names
    return lambda arguments: named(*arguments[: len(names)])  # autograd passes one more


forward_arguments = _names(forward)


@forward.composed
def compute_forward(*arguments: Any) -> Tensors:
    given = forward_arguments(arguments)
    with without_autocast(given.x):
        x, bias = given.x.contiguous(), given.bias
        with SideStream(x) as side_stream:
            weights = side_stream(torch.cat, (given.query_key_value_weight, given.gate_weight))
            if given.edge_weight is None:
                xn, of_norm = norm_forward(x, given.norm_weight, given.norm_bias, given.eps, True)
                made = x.new_empty(0)
            else:
                xn, made = edge_norm_forward(
                    x, given.norm_weight, given.norm_bias, given.edge_weight, not given.along_columns, given.eps
                )
                bias, of_norm = made, x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
        projections = product(xn.flatten(0, 2), weights.t())
        q, k, v = _heads_of(projections, x, given.heads)
        attended, lse = attention_forward(q, k, v, bias, given.mask, given.along_columns, None, given.tf32, False)
        attended = attended.reshape(projections.shape[0], given.gate_weight.shape[0])
        opened = gated(attended, projections, given.gate_bias.contiguous())
        added = x.flatten(0, 2) if given.residual else None
        y = product_with_addend(added, opened, given.output_weight.t(), given.output_bias).view(x.shape)
    return laid_out_like(y, given.x), xn, of_norm, made, weights, projections, attended, lse, opened


def _heads_of(projections: Tensor, x: Tensor, heads: int) -> Tensors:
    """Return views of queries, keys and values as grids."""
    width = projections.shape[1] // SIDES
    return projections.view(*x.shape[:3], SIDES, heads, width // heads).unbind(3)[:3]


@kernels("attention_update_backward")
def backward(
    dupdate: Tensor, xn: Tensor, of_norm: Tensor, made: Tensor, weights: Tensor, projections: Tensor,
    attended: Tensor, lse: Tensor, opened: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, gate_bias: Tensor,
    output_weight: Tensor, edge_weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, heads: int,
    along_columns: bool, eps: float, tf32: bool, residual: bool, bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx and the gradients of the parameters.

    These are of the norm's weight and bias, of vectors in one matrix, of a given bias (empty if not wanted), of all
    projections' weights, of the gate's bias, and of the output's weight and bias. With edge_weight the matrix has as
    rows the gradients of the norm's weight and bias and of edge_weight, and with residual that of the output's bias;
    the separate gradients of these are then empty.
    """
    channels = x.shape[-1]
    has_edges = edge_weight is not None
    of_vector, of_edges = ((0,), (2 + heads + residual, channels)) if has_edges else ((channels,), (0,))
    of_output = (0,) if has_edges and residual else (channels,)
    of_bias = bias.shape if bias is not None and bias_gradient else (0,)
    return (
        x.new_empty(x.shape), x.new_empty(of_vector), x.new_empty(of_vector), x.new_empty(of_edges),
        x.new_empty(of_bias), x.new_empty(weights.shape), x.new_empty(gate_bias.shape),
        x.new_empty(output_weight.shape), x.new_empty(of_output),
    )  # fmt: skip


backward_arguments = _names(backward)


@backward.composed
def compute_backward(*arguments: Any) -> Tensors:
    given = backward_arguments(arguments)
    has_edges = given.edge_weight is not None
    projections, attended, opened = given.projections, given.attended, given.opened
    with without_autocast(given.x), SideStream(given.x) as side_stream:
        x, gate_bias = given.x.contiguous(), given.gate_bias.contiguous()
        rows = given.dupdate.reshape(opened.shape[0], x.shape[-1])
        dnorm_weight, dnorm_bias, dvectors, doutput_bias = (x.new_empty(0) for _ in range(4))
        doutput_weight = side_stream(product, rows.t(), opened)
        if not given.residual:  # with residual, the backward of the norm computes it
            doutput_bias = side_stream(summed, rows, (0,), False)
        dgated = product(rows, given.output_weight)
        q, k, v = _heads_of(projections, x, given.heads)
        dq, dk, dv, dbias = attention_backward(
            gated(dgated, projections, gate_bias).view(q.shape), attended.view(q.shape), given.lse,
            has_edges or given.bias_gradient, q, k, v, given.made if has_edges else given.bias, given.mask,
            given.along_columns, None, given.tf32, False,
        )  # fmt: skip
        dprojections, dgate_bias = projections_gradient(
            dgated, attended, projections, gate_bias, *(one.reshape(attended.shape) for one in (dq, dk, dv))
        )
        dweights = side_stream(product, dprojections.t(), given.xn.flatten(0, 2))
        dxn = product(dprojections, given.weights).view(x.shape)
        dsum = rows.contiguous().view(x.shape) if given.residual else None
        norm = given.norm_weight, given.norm_bias
        if has_edges:
            dx, dvectors = edge_norm_backward(
                dxn, dbias, x, *norm, given.edge_weight, not given.along_columns, given.eps, dsum
            )  # fmt: skip
        elif dsum is not None:
            dx, dnorm_weight, dnorm_bias, doutput_bias = norm_branch_backward(dxn, x, *norm, given.of_norm, dsum)
        else:
            dx, dnorm_weight, dnorm_bias = norm_backward(dxn, x, *norm, given.of_norm, True, True)
        dbias = dbias if given.bias_gradient else x.new_empty(0)
    return dx, dnorm_weight, dnorm_bias, dvectors, dbias, dweights, dgate_bias, doutput_weight, doutput_bias


def save(context: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    given = forward_arguments(inputs)
    context.numbers = given.heads, given.along_columns, given.eps, given.tf32, given.residual
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(
        *output[1:], given.x, given.norm_weight, given.norm_bias, given.gate_bias, given.output_weight,
        given.edge_weight, given.bias, given.mask,
    )  # fmt: skip


def gradient(context: Any, dupdate: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dupdate is None:  # the loss does not depend on the update
        return (None,) * len(inspect.signature(forward.fake).parameters)
    wants_bias = bool(forward_arguments(context.needs_input_grad).bias)
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
