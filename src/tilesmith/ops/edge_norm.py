"""A norm over the channels of pairs and, of what is normed, a bias for each head: one pass over memory each way.

With c channels and h heads, forward moves 2·c + h elements of a pair (read x, write its norm and the biases) and does
about (7 + 2·h)·c flops on them; backward moves 3·c + h. A product with so few columns, and the biases laid out by heads
as attention wants them, would be two more passes each way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.fused.rows import load_vector, norm_gradient

MOST_CHANNELS = 1024  # a tile has all of them, for their norm


def reference(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor, turned: bool, eps: float
) -> tuple[Tensor, Tensor]:
    xn = F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)
    edges = F.linear(xn, edge_weight)
    return xn, edges.permute(0, 3, 2, 1) if turned else edges.permute(0, 3, 1, 2)


@triton.jit
def load_standard_rows(x_ptr, rows, is_there, columns, n_columns, eps, COMPUTE: tl.constexpr):
    """Rows with mean zero and variance one, zeros beyond their end; and 1 / their deviation, as a column."""
    x = tl.load(x_ptr + rows[:, None] * n_columns + columns[None, :], mask=is_there, other=0.0).to(COMPUTE)
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]
    centred = tl.where((columns < n_columns)[None, :], x - mean, 0.0)
    inverse_deviation = tl.rsqrt(tl.sum(centred * centred, axis=1) / n_columns + eps)[:, None]
    return centred * inverse_deviation, inverse_deviation


@triton.jit
def normed_rows(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE: tl.constexpr):
    normed = standard * load_vector(weight_ptr, columns, columns < n_columns, COMPUTE)
    if bias_ptr is not None:
        normed += load_vector(bias_ptr, columns, columns < n_columns, COMPUTE)
    return normed


@triton.jit
def places_of_edges(pairs, n_residues, n_heads, TURNED: tl.constexpr):
    """Where the first head's biases of these pairs are in [batch, heads, n, n]; TURNED where the last two are
    exchanged."""
    of_head = n_residues.to(tl.int64) * n_residues
    i, j = pairs // n_residues % n_residues, pairs % n_residues
    in_head = j * n_residues + i if TURNED else i * n_residues + j
    return pairs // of_head * n_heads * of_head + in_head, of_head


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_forward_kernel(
    x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, xn_ptr, edges_ptr, n_pairs, n_residues, n_heads, n_columns,
    eps, TURNED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_there = (pairs < n_pairs)[:, None] & (columns < n_columns)[None, :]
    standard, _ = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = normed_rows(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE).to(x_ptr.dtype.element_ty)
    tl.store(xn_ptr + pairs[:, None] * n_columns + columns[None, :], xn, mask=is_there)
    places, of_head = places_of_edges(pairs, n_residues, n_heads, TURNED)
    for head in range(n_heads):
        weight = load_vector(edge_weight_ptr + head * n_columns, columns, columns < n_columns, COMPUTE)
        edge = tl.sum(xn.to(COMPUTE) * weight, axis=1)
        tl.store(edges_ptr + places + head * of_head, edge.to(edges_ptr.dtype.element_ty), mask=pairs < n_pairs)


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_backward_kernel(
    dxn_ptr, dedges_ptr, dsum_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, dx_ptr, partials_ptr,
    n_pairs, n_residues, n_heads, n_columns, eps,
    TURNED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx, to which dsum is added if there is one, and partial sums one after the other: for the norm's weight, its
    bias and each head's weight, and of dsum."""
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_column = columns < n_columns
    is_there = (pairs < n_pairs)[:, None] & is_column[None, :]
    offsets = pairs[:, None] * n_columns + columns[None, :]
    standard, inverse_deviation = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = normed_rows(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE)
    xn = xn.to(x_ptr.dtype.element_ty).to(COMPUTE)
    dxn = tl.zeros([ROWS, COLUMNS], COMPUTE)
    if dxn_ptr is not None:
        dxn = tl.load(dxn_ptr + offsets, mask=is_there, other=0.0).to(COMPUTE)
    if dsum_ptr is not None:
        dsum = tl.load(dsum_ptr + offsets, mask=is_there, other=0.0)
    n_sums = 2 + n_heads if dsum_ptr is None else 3 + n_heads
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (n_sums * n_columns) + columns
    if dsum_ptr is not None:
        tl.store(partials + (2 + n_heads) * n_columns, tl.sum(dsum.to(COMPUTE), axis=0), mask=is_column)
    places, of_head = places_of_edges(pairs, n_residues, n_heads, TURNED)
    for head in range(n_heads):
        weight = load_vector(edge_weight_ptr + head * n_columns, columns, is_column, COMPUTE)
        dedge = tl.load(dedges_ptr + places + head * of_head, mask=pairs < n_pairs, other=0.0).to(COMPUTE)[:, None]
        dxn += dedge * weight
        tl.store(partials + (2 + head) * n_columns, tl.sum(dedge * xn, axis=0), mask=is_column)
    tl.store(partials, tl.sum(dxn * standard, axis=0), mask=is_column)
    tl.store(partials + n_columns, tl.sum(dxn, axis=0), mask=is_column)
    norm_weight = load_vector(norm_weight_ptr, columns, is_column, COMPUTE)
    dx = norm_gradient(dxn, standard, inverse_deviation, norm_weight, n_columns)
    if dsum_ptr is not None:
        dx += dsum.to(COMPUTE)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=is_there)


@dataclass(frozen=True)
class EdgeNormConfig(Config):
    """Each program takes ROWS pairs with all their channels."""

    ROWS: int = 32


def _block(channels: int) -> int:
    return max(bucket(channels), 16)


def edge_norm_config(channels: int) -> EdgeNormConfig:
    """4096 elements: 16 for each thread of eight warps, which hold a tile several times over."""
    return EdgeNormConfig(num_warps=8, ROWS=max(4096 // _block(channels), 1))


def edge_norm_gradient_config(channels: int) -> EdgeNormConfig:
    """Programs of two warps, so that sums over their pairs wait for few others.

    For 16,384 pairs of 128 channels in float32 on an H200 that is 18.2 µs, and 3.0 for the sum of what all programs
    leave; 38.0 and 2.1 with eight warps and twice the pairs. With one warp it would be 15.8, and spill. With a gradient
    that went past the norm, and the sums of it that a bias needs, both take 22.3 together.
    """
    rows = min(2048 // _block(channels), 16)
    if channels % 16:  # narrow loads, each with an address: less for every thread
        rows //= 2
    return EdgeNormConfig(num_warps=2, ROWS=max(rows, 1))


def edge_gradient_config(channels: int) -> EdgeNormConfig:
    """Where nothing came of the norm but the biases: a warp for 1024 elements, and for half as many pairs as above.

    The compiler lays such a tile out in another way, in which as many pairs as above spill. 16,384 pairs of 128
    channels in float32 take 18.3 µs on an H200 with the sum of what all programs leave, and 31.7 with two warps.
    """
    columns = _block(channels)
    return EdgeNormConfig(num_warps=min(max(columns // 1024, 1), 8), ROWS=max(min(1024 // columns, 8), 1))


def _arguments(
    plan: Plan, config_of: Callable[[int], EdgeNormConfig], x: Operand, norm_weight: Operand,
    norm_bias: Operand | None, edge_weight: Operand, turned: bool, eps: float, *others: Operand,
) -> tuple[EdgeNormConfig, int, dict[str, object]]:  # fmt: skip
    """What to launch, with how many programs, and what both kernels take."""
    batch, residues, _, channels = x.shape
    for operand in (x, norm_weight, edge_weight, *others, *([norm_bias] if norm_bias else [])):
        if operand.strides != torch.empty(operand.shape, device="meta").stride():
            raise NotWalkable(f"strides {operand.strides} have gaps")
    pairs = batch * residues**2
    config = plan.choose(config_of(channels), bucket(channels), x.dtype)
    return config, triton.cdiv(pairs, config.ROWS), {
        "x_ptr": x, "norm_weight_ptr": norm_weight, "norm_bias_ptr": norm_bias, "edge_weight_ptr": edge_weight,
        "n_pairs": pairs, "n_residues": residues, "n_heads": edge_weight.shape[0], "n_columns": channels,
        "eps": float(eps), "TURNED": turned, "COMPUTE": compute_dtype(x.dtype), "COLUMNS": _block(channels),
    }  # fmt: skip


@kernels("edge_norm_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor, turned: bool, eps: float
) -> tuple[Tensor, Tensor]:
    batch, residues, _, _ = x.shape
    return x.new_empty(x.shape), x.new_empty(batch, edge_weight.shape[0], residues, residues)


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, norm_weight: Operand, norm_bias: Operand | None, edge_weight: Operand, turned: bool,
    eps: float,
) -> tuple[Operand, Operand]:  # fmt: skip
    batch, residues, _, _ = x.shape
    config, programs, arguments = _arguments(
        plan, edge_norm_config, x, norm_weight, norm_bias, edge_weight, turned, eps
    )  # fmt: skip
    xn, edges = plan.empty(x.shape, x.dtype), plan.empty((batch, edge_weight.shape[0], residues, residues), x.dtype)
    plan.launch(edge_norm_forward_kernel, (programs,), config, xn_ptr=xn, edges_ptr=edges, **arguments)
    return xn, edges


@kernels("edge_norm_backward")
def backward(
    dxn: Tensor | None, dedges: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor,
    turned: bool, eps: float, dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dx, to which dsum is added; and as rows the gradients of the norm's weight, of its bias and of each head's
    weight, and where there is a dsum its sum over all pairs."""
    return x.new_empty(x.shape), x.new_empty(2 + edge_weight.shape[0] + (dsum is not None), x.shape[-1])


@backward.plan
def plan_backward(
    plan: Plan, dxn: Operand | None, dedges: Operand, x: Operand, norm_weight: Operand, norm_bias: Operand | None,
    edge_weight: Operand, turned: bool, eps: float, dsum: Operand | None = None,
) -> tuple[Operand, Operand]:  # fmt: skip
    incoming = [one for one in (dxn, dedges, dsum) if one is not None]
    config_of = edge_gradient_config if dxn is None else edge_norm_gradient_config
    config, programs, arguments = _arguments(
        plan, config_of, x, norm_weight, norm_bias, edge_weight, turned, eps, *incoming
    )  # fmt: skip
    shape = (2 + edge_weight.shape[0] + (dsum is not None), x.shape[-1])
    dx, dparameters = plan.empty(x.shape, x.dtype), plan.empty(shape, x.dtype)
    columns = shape[0] * shape[1]
    partials = plan.empty((programs, columns), torch.promote_types(x.dtype, torch.float32))
    plan.launch(
        edge_norm_backward_kernel, (programs,), config,
        dxn_ptr=dxn, dedges_ptr=dedges, dsum_ptr=dsum, dx_ptr=dx, partials_ptr=partials, **arguments,
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, dparameters.seen_as((columns,), (1,)), compute_dtype(x.dtype))
    return dx, dparameters


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, context.turned, context.eps = inputs
    context.set_materialize_grads(False)
    context.save_for_backward(*tensors)


def gradient(context: Any, dxn: Tensor | None, dedges: Tensor | None) -> tuple[Tensor | None, ...]:
    if dxn is None and dedges is None:
        return (None,) * 6
    x, norm_weight, norm_bias, edge_weight = context.saved_tensors
    if dedges is None:  # nothing came of the biases
        batch, residues, _, _ = x.shape
        dedges = x.new_zeros(batch, edge_weight.shape[0], residues, residues)
    dx, dparameters = backward(dxn, dedges, x, norm_weight, norm_bias, edge_weight, context.turned, context.eps)
    dnorm_weight, dnorm_bias, dedge_weight = dparameters[0], dparameters[1], dparameters[2:]
    return dx, dnorm_weight, None if norm_bias is None else dnorm_bias, dedge_weight, None, None


def takes(x: Tensor, *_: object) -> bool:
    """Doubles are computed by the kernels only to be tested."""
    return x.shape[-1] <= MOST_CHANNELS and not (x.is_cuda and x.dtype == torch.float64)


@operator(
    "edge_norm", reference=reference, forward=forward, save=save, gradient=gradient,
    options=Options(takes=takes, autocasts=True),
)  # fmt: skip
def edge_norm(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor, turned: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The norm of pairs [batch, n, n, channels], and that times edge_weight [heads, channels] as [batch, heads, n, n],
    with a pair's two residues exchanged if `turned`. Of tensors that a module has made for each other."""
    return x, x
