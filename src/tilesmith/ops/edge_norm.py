"""Edge norm: the layer norm of pairs, and from each normed pair a bias for every head of attention.

xn = layer_norm(x),    edges[head] = xn · edge_weight[head].

With c channels and h heads, the forward moves 2·c + h elements per pair (reads x, writes xn and the biases) and does
about (7 + 2·h)·c flops. The backward moves 3·c + h elements. Each is one pass over memory. A separate GEMM of h columns
and a transposition to [batch, heads, n, n], the layout that attention reads, would add two passes each way.
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

from tilesmith.ops.device.channels import load_vector, norm_gradient
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norm_rows import two_row_means, without_error
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.arguments import (
    require_flag,
    require_floating,
    require_number,
    require_same_device,
    require_same_dtype,
    require_vector,
)
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
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
    xn = F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)
    edges = F.linear(xn, edge_weight)
    return xn, edges.permute(0, 3, 2, 1) if transposed else edges.permute(0, 3, 1, 2)


@triton.jit
def load_standard_rows(x_ptr, rows, is_there, columns, n_columns, eps, COMPUTE: tl.constexpr):
    """Return rows scaled to mean 0 and variance 1, with zeros past their end, and 1 / their standard deviation."""
    offsets = rows[:, None] * n_columns + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=is_there, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    in_row = (columns < n_columns)[None, :]
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]  # [ROWS, 1], rounded
    centred = tl.where(in_row, x - mean, 0.0)
    error, square = two_row_means(centred, centred * centred, n_columns)
    inverse_deviation = tl.rsqrt(without_error(square, error) + eps)  # [ROWS, 1]
    return tl.where(in_row, (x - (mean + error)) * inverse_deviation, 0.0), inverse_deviation


@triton.jit
def scale_and_shift(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE: tl.constexpr):
    """Return standard · weight + bias, the norm's output."""
    normed = standard * load_vector(weight_ptr, columns, columns < n_columns, COMPUTE)
    if bias_ptr is not None:
        normed += load_vector(bias_ptr, columns, columns < n_columns, COMPUTE)
    return normed


@triton.jit
def edge_offsets(pairs, n_residues, n_heads, TRANSPOSED: tl.constexpr):
    """Return the offset of each pair's bias for head 0 in [batch, heads, n, n], and the stride between heads."""
    head_stride = n_residues.to(tl.int64) * n_residues
    i, j = pairs // n_residues % n_residues, pairs % n_residues
    in_head = j * n_residues + i if TRANSPOSED else i * n_residues + j
    return pairs // head_stride * n_heads * head_stride + in_head, head_stride


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_forward_kernel(
    x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, xn_ptr, edges_ptr, n_pairs, n_residues, n_heads, n_columns,
    eps, TRANSPOSED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_there = (pairs < n_pairs)[:, None] & (columns < n_columns)[None, :]
    standard, _ = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = scale_and_shift(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE)
    xn = xn.to(x_ptr.dtype.element_ty)  # [ROWS, COLUMNS]
    tl.store(xn_ptr + pairs[:, None] * n_columns + columns[None, :], xn, mask=is_there)
    offsets_of_edges, head_stride = edge_offsets(pairs, n_residues, n_heads, TRANSPOSED)
    for head in range(n_heads):
        weight = load_vector(edge_weight_ptr + head * n_columns, columns, columns < n_columns, COMPUTE)  # [COLUMNS]
        edge = tl.sum(xn.to(COMPUTE) * weight, axis=1).to(edges_ptr.dtype.element_ty)  # [ROWS]
        tl.store(edges_ptr + offsets_of_edges + head * head_stride, edge, mask=pairs < n_pairs)


@triton.jit(do_not_specialize=["n_pairs", "n_residues", "n_heads"])
def edge_norm_backward_kernel(
    dxn_ptr, dedges_ptr, dsum_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, edge_weight_ptr, dx_ptr, partials_ptr,
    n_pairs, n_residues, n_heads, n_columns, eps,
    TRANSPOSED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute dx + dsum, and this program's partial sums for the gradients of vectors.

    The partial sums are rows of n_columns: for the norm's weight, the norm's bias, each head's edge weight, and the sum
    of dsum if dsum is given.
    """
    pairs = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_column = columns < n_columns
    is_there = (pairs < n_pairs)[:, None] & is_column[None, :]
    offsets = pairs[:, None] * n_columns + columns[None, :]
    standard, inverse_deviation = load_standard_rows(x_ptr, pairs, is_there, columns, n_columns, eps, COMPUTE)
    xn = scale_and_shift(standard, norm_weight_ptr, norm_bias_ptr, columns, n_columns, COMPUTE)
    xn = xn.to(x_ptr.dtype.element_ty).to(COMPUTE)
    dxn = tl.zeros([ROWS, COLUMNS], COMPUTE)
    if dxn_ptr is not None:
        dxn = tl.load(dxn_ptr + offsets, mask=is_there, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    if dsum_ptr is not None:
        dsum = tl.load(dsum_ptr + offsets, mask=is_there, other=0.0)  # [ROWS, COLUMNS]
    n_sums = 2 + n_heads if dsum_ptr is None else 3 + n_heads
    partials = partials_ptr + tl.program_id(0).to(tl.int64) * (n_sums * n_columns) + columns
    if dsum_ptr is not None:
        tl.store(partials + (2 + n_heads) * n_columns, tl.sum(dsum.to(COMPUTE), axis=0), mask=is_column)
    offsets_of_edges, head_stride = edge_offsets(pairs, n_residues, n_heads, TRANSPOSED)
    for head in range(n_heads):
        weight = load_vector(edge_weight_ptr + head * n_columns, columns, is_column, COMPUTE)
        dedge_ptr = dedges_ptr + offsets_of_edges + head * head_stride
        dedge = tl.load(dedge_ptr, mask=pairs < n_pairs, other=0.0).to(COMPUTE)[:, None]  # [ROWS, 1]
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


def _column_block(channels: int) -> int:
    return max(bucket(channels), 16)


def edge_norm_config(channels: int) -> EdgeNormConfig:
    """Return tiles of 4096 elements: 16 per thread of eight warps, because a thread holds several such tiles."""
    return EdgeNormConfig(num_warps=8, ROWS=max(4096 // _column_block(channels), 1))


def edge_norm_gradient_config(channels: int) -> EdgeNormConfig:
    """Return tiles for two warps: sums over pairs then synchronise few warps.

    16,384 pairs of 128 channels in float32 on an H200 take 18.2 µs plus 3.0 for the sum of partials; eight warps with
    twice the pairs take 38.0 plus 2.1. One warp takes 15.8 but spills. With dsum both kernels take 22.3 together.
    """
    rows = min(2048 // _column_block(channels), 16)
    if channels % 16:  # loads are narrow and each needs an address, so a thread takes fewer
        rows //= 2
    return EdgeNormConfig(num_warps=2, ROWS=max(rows, 1))


def edge_gradient_config(channels: int) -> EdgeNormConfig:
    """Return tiles for a backward without dxn: one warp per 1024 elements, half the pairs of the tiles above.

    Without dxn the compiler chooses another layout, in which the tiles above spill. 16,384 pairs of 128 channels in
    float32 take 18.3 µs on an H200 with the sum of partials, and 31.7 with two warps.
    """
    columns = _column_block(channels)
    return EdgeNormConfig(num_warps=min(max(columns // 1024, 1), 8), ROWS=max(min(1024 // columns, 8), 1))


def _arguments(
    plan: Plan, config_of: Callable[[int], EdgeNormConfig], x: Operand, norm_weight: Operand,
    norm_bias: Operand | None, edge_weight: Operand, transposed: bool, eps: float, *others: Operand,
) -> tuple[EdgeNormConfig, int, dict[str, object]]:  # fmt: skip
    """Return the configuration, the number of programs and the arguments that both kernels take."""
    batch, residues, _, channels = x.shape
    for operand in (x, norm_weight, edge_weight, *others, *([norm_bias] if norm_bias else [])):
        if not torch.empty_strided(operand.shape, operand.strides, device="meta").is_contiguous():
            raise NotWalkable(f"strides {operand.strides} have gaps")
    pairs = batch * residues**2
    config = plan.choose(config_of(channels), bucket(channels), x.dtype)
    return config, triton.cdiv(pairs, config.ROWS), {
        "x_ptr": x, "norm_weight_ptr": norm_weight, "norm_bias_ptr": norm_bias, "edge_weight_ptr": edge_weight,
        "n_pairs": pairs, "n_residues": residues, "n_heads": edge_weight.shape[0], "n_columns": channels,
        "eps": float(eps), "TRANSPOSED": transposed, "COMPUTE": compute_dtype(x.dtype),
        "COLUMNS": _column_block(channels),
    }  # fmt: skip


@kernels("edge_norm_forward")
def forward(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor, transposed: bool, eps: float
) -> tuple[Tensor, Tensor]:
    batch, residues, _, _ = x.shape
    return torch.empty_like(x), x.new_empty(batch, edge_weight.shape[0], residues, residues)


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, norm_weight: Operand, norm_bias: Operand | None, edge_weight: Operand, transposed: bool,
    eps: float,
) -> tuple[Operand, Operand]:  # fmt: skip
    batch, residues, _, _ = x.shape
    config, programs, arguments = _arguments(
        plan, edge_norm_config, x, norm_weight, norm_bias, edge_weight, transposed, eps
    )  # fmt: skip
    xn, edges = plan.empty(x.shape, x.dtype), plan.empty((batch, edge_weight.shape[0], residues, residues), x.dtype)
    plan.launch(edge_norm_forward_kernel, (programs,), config, xn_ptr=xn, edges_ptr=edges, **arguments)
    return xn, edges


@kernels("edge_norm_backward")
def backward(
    dxn: Tensor | None, dedges: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor,
    transposed: bool, eps: float, dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return dx + dsum, and a matrix of gradients.

    Its rows are the gradients of the norm's weight, the norm's bias and each head's edge weight, and the sum of dsum
    over all pairs if dsum is given.
    """
    return x.new_empty(x.shape), x.new_empty(2 + edge_weight.shape[0] + int(dsum is not None), x.shape[-1])


@backward.plan
def plan_backward(
    plan: Plan, dxn: Operand | None, dedges: Operand, x: Operand, norm_weight: Operand, norm_bias: Operand | None,
    edge_weight: Operand, transposed: bool, eps: float, dsum: Operand | None = None,
) -> tuple[Operand, Operand]:  # fmt: skip
    incoming = [one for one in (dxn, dedges, dsum) if one is not None]
    config_of = edge_gradient_config if dxn is None else edge_norm_gradient_config
    config, programs, arguments = _arguments(
        plan, config_of, x, norm_weight, norm_bias, edge_weight, transposed, eps, *incoming
    )  # fmt: skip
    shape = (2 + edge_weight.shape[0] + int(dsum is not None), x.shape[-1])
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
