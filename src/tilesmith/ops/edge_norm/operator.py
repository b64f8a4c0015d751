"""The operator: its meaning, checks and spec."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.edge_norm.plans import backward, forward
from tilesmith.ops.layer_norm.operator import native as layer_norm
from tilesmith.ops.runtime.arguments import (
    require_flag,
    require_floating,
    require_number,
    require_same_device,
    require_same_dtype,
    require_vector,
)
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.spec import Case, Cost, Layout, Spec, Work

MOST_CHANNELS = 1024  # a tile holds whole rows, because the norm needs all channels


def reference(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    edge_weight: Tensor,
    transposed: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    xn = layer_norm(x, norm_weight, norm_bias, eps)
    edges = F.linear(xn, edge_weight)
    return xn, edges.permute(0, 3, 2, 1) if transposed else edges.permute(0, 3, 1, 2)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, context.transposed, context.eps = inputs
    context.set_materialize_grads(False)
    context.save_for_backward(*tensors)


def gradient(context: Any, dxn: Tensor | None, dedges: Tensor | None) -> tuple[Tensor | None, ...]:
    if dxn is None and dedges is None:
        return (None,) * 6
    x, norm_weight, norm_bias, edge_weight = context.saved_tensors
    if dedges is None:  # the loss does not depend on the biases
        batch, residues, _, _ = x.shape
        dedges = x.new_zeros(batch, edge_weight.shape[0], residues, residues)
    dx, dparameters = backward(dxn, dedges, x, norm_weight, norm_bias, edge_weight, context.transposed, context.eps)
    dnorm_weight, dnorm_bias, dedge_weight = dparameters[0], dparameters[1], dparameters[2:]
    return dx, dnorm_weight, None if norm_bias is None else dnorm_bias, dedge_weight, None, None


def takes(x: Tensor, *_: object) -> bool:
    """Return whether the kernels compute these sizes. On a GPU they leave doubles to PyTorch."""
    return x.shape[-1] <= MOST_CHANNELS and not (x.is_cuda and x.dtype == torch.float64)


@operator(
    "edge_norm", reference=reference, forward=forward, save=save, gradient=gradient,
    options=Options(takes=takes, autocasts=True),
)  # fmt: skip
def edge_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    edge_weight: Tensor,
    transposed: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return the layer norm of pairs, and the normed pairs times edge_weight as biases for attention.

    x is [batch, n, n, channels], `norm_weight` and `norm_bias` are [channels], `edge_weight` is [heads, channels]. All
    have one dtype. The norm has the shape of x, the biases are [batch, heads, n, n]. `transposed` exchanges the last
    two dimensions of the biases, as the ending node of triangle attention needs them.
    """
    given = {"norm_weight": norm_weight, **({} if norm_bias is None else {"norm_bias": norm_bias})}
    given["edge_weight"] = edge_weight
    require_floating("edge_norm", x=x, **given)
    require_same_device("edge_norm", x=x, **given)
    if x.ndim != 4 or x.shape[1] != x.shape[2] or x.shape[3] == 0:
        raise ValueError(f"edge_norm: x has shape {tuple(x.shape)}, but must be [batch, n, n, channels]")
    require_vector("edge_norm", "norm_weight", norm_weight, x.shape[3], "x")
    require_vector("edge_norm", "norm_bias", norm_bias, x.shape[3], "x")
    if edge_weight.ndim != 2 or edge_weight.shape[1] != x.shape[3]:
        raise ValueError(
            f"edge_norm: edge_weight has shape {tuple(edge_weight.shape)}, but must be [heads, channels], and x has "
            f"{x.shape[3]} channels"
        )
    for name, tensor in given.items():
        require_same_dtype("edge_norm", name, tensor, "x", x)
    require_flag("edge_norm", "transposed", transposed)
    require_number("edge_norm", "eps", eps, at_least=0.0)
    return x, x


TRANSPOSED_CASE = "transposed"


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    def random(*shape: int) -> Tensor:
        return layout(torch.randn(shape, dtype=dtype, device=device))

    return {
        "x": random(case.batch, case.residues, case.residues, case.channels),
        "norm_weight": random(case.channels),
        "norm_bias": random(case.channels),
        "edge_weight": random(case.heads, case.channels),
        "transposed": case.name == TRANSPOSED_CASE,
        "eps": 1e-5,
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    pairs, channels, heads = case.batch * case.residues**2, case.channels, case.heads
    weights = (2 + heads) * channels
    return Cost(
        forward=Work(
            bytes=((2 * channels + heads) * pairs + weights) * dtype.itemsize, flops=(7 + 2 * heads) * channels * pairs
        ),
        backward=Work(
            bytes=((3 * channels + heads) * pairs + 2 * weights) * dtype.itemsize,
            flops=(15 + 4 * heads) * channels * pairs,
        ),
    )


SPEC = Spec(
    name="edge_norm",
    op=edge_norm,
    reference=reference,
    roundings=3,  # the norm, the biases; in the backward the gradient of the norm
    formula="xn = norm(x), edges = xn · wᵀ",
    cases=[
        Case("one", residues=1, batch=1, channels=4, heads=1),
        Case("odd", residues=3, batch=2, channels=7, heads=3),
        Case(TRANSPOSED_CASE, residues=3, batch=1, channels=5, heads=2),
        Case("past-a-block", residues=6, batch=1, channels=130, heads=2),
        Case("crops", residues=64, batch=4, channels=128, heads=4),
        Case("n256", residues=256, batch=1, channels=128, heads=4),
        Case("pair-bias", residues=256, batch=1, channels=128, heads=8),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
