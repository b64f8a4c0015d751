"""The operator: its meaning, checks and spec."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.attention.operator import LARGEST_HEAD
from tilesmith.ops.attention_update.update import forward, forward_arguments, gradient, save
from tilesmith.ops.edge_norm import MOST_CHANNELS
from tilesmith.ops.layer_norm.operator import native as layer_norm
from tilesmith.ops.runtime.arguments import (
    require_flag,
    require_floating,
    require_mask,
    require_number,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.precision import tf32_allowed
from tilesmith.ops.triangle_attention import grid
from tilesmith.spec import Case, Cost, Layout, Spec, Work

NAME = "attention_update"


def reference(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, heads: int, along_columns: bool = True,
    edge_weight: Tensor | None = None, bias: Tensor | None = None, mask: Tensor | None = None, eps: float = 1e-5,
    residual: bool = False,
) -> Tensor:  # fmt: skip
    xn = layer_norm(x, norm_weight, norm_bias, eps)
    q, k, v = F.linear(xn, query_key_value_weight).unflatten(-1, (3, heads, gate_weight.shape[0] // heads)).unbind(-3)
    gate = F.linear(xn, gate_weight, gate_bias).view(q.shape)
    if edge_weight is not None:
        bias = F.linear(xn, edge_weight).permute((0, 3, 1, 2) if along_columns else (0, 3, 2, 1))
    attended = grid.reference(q, k, v, bias, mask, along_columns, gate, None)
    update = F.linear(attended.flatten(-2), output_weight, output_bias)
    return x + update if residual else update


def prepare(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, heads: int, along_columns: bool,
    edge_weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, eps: float, residual: bool,
) -> tuple[Any, ...]:  # fmt: skip
    return (
        x, norm_weight, norm_bias, query_key_value_weight, gate_weight, gate_bias, output_weight, output_bias,
        edge_weight, bias, grid.mask_by_sequence(mask, along_columns), heads, along_columns, float(eps),
        x.dtype == torch.float32 and tf32_allowed(), residual,
    )  # fmt: skip


def takes(*arguments: Any) -> bool:
    """Return whether the kernels compute these sizes. On a GPU they leave doubles to PyTorch."""
    given = forward_arguments(arguments)
    if given.edge_weight is not None and given.x.shape[-1] > MOST_CHANNELS:
        return False
    is_double = given.x.is_cuda and given.x.dtype == torch.float64
    return given.gate_weight.shape[0] // given.heads <= LARGEST_HEAD and not is_double


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=Options(takes=takes, switches=tf32_allowed, autocasts=True, returns="first", residual="fused"),
)  # fmt: skip
def attention_update(
    x: Tensor,
    *,
    norm_weight: Tensor,
    norm_bias: Tensor,
    query_key_value_weight: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
    heads: int,
    along_columns: bool = True,
    edge_weight: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-5,
    residual: bool = False,
) -> Tensor:
    """Return the update of a grid x, [batch, rows, columns, channels], by attention:

    xn = norm(x); y = output(σ(gate(xn)) · softmax(q·kᵀ/√(head size) + bias) · v), with q, k and v projected from xn.

    - `along_columns=True`: a place attends to those of its row; False: to those of its column.
    - `norm_weight`, `norm_bias`: [channels]. `query_key_value_weight`: [3 · width, channels], those of queries, then
      keys, then values; `gate_weight`: [width, channels], `gate_bias`: [width]. The width is shared by the `heads`.
    - `output_weight`: [channels, width], `output_bias`: [channels].
    - `bias`: [batch, heads, length, length] as [query, key]. It has a gradient.
    - `edge_weight`: [heads, channels], in place of a bias, where x is square: the bias is projected from xn, with that
      of the place jk for j and k along the columns, and of kj along the rows, as triangle attention has it.
    - `mask`: boolean [batch, rows, columns], true for places that may be attended to. One that sees none attends to
      nothing.
    - `residual=True`: x + y instead of y. Forward and backward then add where they compute, and no pass is spent on it.

    All of one dtype. Products follow PyTorch's own setting for tf32.
    """
    vectors = {"norm_weight": norm_weight, "norm_bias": norm_bias, "gate_bias": gate_bias, "output_bias": output_bias}
    optional = {name: one for name, one in (("edge_weight", edge_weight), ("bias", bias)) if one is not None}
    weights = {"query_key_value_weight": query_key_value_weight, "gate_weight": gate_weight}
    given = {**vectors, **weights, "output_weight": output_weight, **optional}
    require_floating(NAME, x=x, **given)
    require_flag(NAME, "along_columns", along_columns)
    require_flag(NAME, "residual", residual)
    shapes = _wanted_shapes(x, gate_weight, heads, along_columns)
    for name, tensor in given.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{NAME}: {name} has shape {tuple(tensor.shape)}, but must have {shapes[name]}")
        require_same_dtype(NAME, name, tensor, "x", x)
    if edge_weight is not None and bias is not None:
        raise ValueError(f"{NAME}: edge_weight makes a bias, but bias is given too; there can be only one")
    if edge_weight is not None and x.shape[1] != x.shape[2]:
        raise ValueError(f"{NAME}: edge_weight is given, but x of shape {tuple(x.shape)} is not square")
    require_mask(NAME, mask, tuple(x.shape[:3]), "[batch, rows, columns]")
    require_same_device(NAME, x=x, **given, mask=mask)
    require_number(NAME, "eps", eps, at_least=0.0)
    return x


def _wanted_shapes(x: Tensor, gate_weight: Tensor, heads: int, along_columns: bool) -> dict[str, tuple[int, ...]]:
    """Return the shape that each argument but x must have."""
    if x.ndim != 4 or x.shape[3] == 0:
        raise ValueError(f"{NAME}: x has shape {tuple(x.shape)}, but must be [batch, rows, columns, channels]")
    channels, width = x.shape[3], gate_weight.shape[0] if gate_weight.ndim else 0
    if isinstance(heads, bool) or not isinstance(heads, int):
        raise TypeError(f"{NAME}: heads is a {type(heads).__name__}, but must be a whole number")
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"{NAME}: heads is {heads}, but must divide the {width} rows of gate_weight")
    length = x.shape[2] if along_columns else x.shape[1]
    return {
        "norm_weight": (channels,), "norm_bias": (channels,), "gate_bias": (width,), "output_bias": (channels,),
        "query_key_value_weight": (3 * width, channels), "gate_weight": (width, channels),
        "output_weight": (channels, width), "edge_weight": (heads, channels),
        "bias": (x.shape[0], heads, length, length),
    }  # fmt: skip


TURNED, BIASED = "ending", "biased"  # cases: along the rows, and with a bias that is given
ADDED = (TURNED, BIASED)  # those in which the update is added to x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Return inputs: pairs with edges, except in the case with a bias; with residual in the cases ADDED."""
    channels, width = case.channels, case.heads * case.head
    grid_of = case.batch, case.rows, case.columns

    def made(*shape: int) -> Tensor:
        weight = torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5
        return weight if layout.name == "expanded" else layout(weight)  # rows all alike would leave softmax no choice

    inputs: dict[str, Any] = {
        "x": layout(torch.randn(*grid_of, channels, dtype=dtype, device=device)),
        "norm_weight": layout(1 + torch.randn(channels, dtype=dtype, device=device) / 4), "norm_bias": made(channels),
        "query_key_value_weight": made(3 * width, channels), "gate_weight": made(width, channels),
        "gate_bias": made(width), "output_weight": made(channels, width), "output_bias": made(channels),
        "heads": case.heads, "along_columns": case.name != TURNED,
    }  # fmt: skip
    if case.name == BIASED:
        inputs["bias"] = made(case.batch, case.heads, case.columns, case.columns)
    elif case.rows == case.columns:
        inputs["edge_weight"] = made(case.heads, channels)
    places = torch.arange(case.batch * case.rows * case.columns, device=device)
    inputs["mask"] = (places % 5 != 2).view(grid_of)
    return {**inputs, "residual": True} if case.name in ADDED else inputs


def cost(case: Case, dtype: torch.dtype) -> Cost:
    places, width = case.batch * case.rows * case.columns, case.heads * case.head
    length = case.rows if case.name == TURNED else case.columns
    x, weights = places * case.channels * dtype.itemsize, 5 * width * case.channels * dtype.itemsize
    projections, attention = 10 * places * width * case.channels, 4 * places * length * width
    return Cost(
        forward=Work(bytes=2 * x + weights, flops=projections + attention),
        # x and dy come in, dx goes out; each product of the forward has two, and scores are made once more.
        backward=Work(bytes=3 * x + 2 * weights, flops=2 * projections + 5 * attention // 2),
    )


SPEC = Spec(
    name=NAME,
    op=attention_update,
    reference=reference,
    roundings=10,  # norm, projections, scores, weights, their sum, output, gate, update; and of gradients as many
    formula="y = o(σ(g(xn)) · softmax(q(xn)·k(xn)ᵀ/√d + b) · v(xn)), xn = norm(x)",
    cases=[
        Case("one row", batch=1, rows=1, columns=3, channels=5, heads=1, head=4),
        Case("odd", batch=2, rows=3, columns=3, channels=7, heads=2, head=3),
        Case(TURNED, batch=1, rows=3, columns=3, channels=9, heads=2, head=4),
        Case(BIASED, batch=2, rows=2, columns=3, channels=7, heads=2, head=3),
        Case("n256", batch=1, rows=256, columns=256, channels=128, heads=4, head=32),
        Case("crops", batch=4, rows=64, columns=64, channels=128, heads=4, head=32),
        Case("alignment", rows=128, columns=64, batch=4, channels=64, heads=4, head=16),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
