"""Forward and backward of edge norm as launches, and the tiles of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.edge_norm.kernels import edge_norm_backward_kernel, edge_norm_forward_kernel
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class EdgeNormConfig(Config):
    """Each program takes ROWS pairs with all their channels. The forward loads the weights of HEADS heads at once."""

    ROWS: int = 32
    HEADS: int = 1


def _column_block(channels: int) -> int:
    return max(bucket(channels), 16)


def edge_norm_config(channels: int, pairs: int, multiprocessors: int) -> EdgeNormConfig:
    """Return tiles of 4096 elements: 16 per thread of eight warps, because a thread holds several such tiles.

    If these make no more than one program per multiprocessor, tiles are small. µs on an H200 (with 4096 elements;
    PyTorch): 27² pairs, 8 heads, bf16 3.7 (6.3; 8.2), fp32 4.1 (7.0; 12.3), 64² pairs, 4 heads, bf16 3.5 (4.6; 12.3).
    """
    rows = max(4096 // _column_block(channels), 1)
    if pairs <= rows * multiprocessors:
        return small_config(channels)
    return EdgeNormConfig(num_warps=8, ROWS=rows)


def small_config(channels: int) -> EdgeNormConfig:
    """Return tiles of 512 elements, 16 per thread of one warp, that load the weights of four heads at once."""
    columns = _column_block(channels)
    return EdgeNormConfig(num_warps=max(columns // 512, 1), ROWS=max(512 // columns, 1), HEADS=4)


def edge_norm_gradient_config(channels: int, pairs: int, multiprocessors: int) -> EdgeNormConfig:
    """Return tiles for two warps: sums over pairs then synchronise few warps.

    16,384 pairs of 128 channels in float32 on an H200 take 18.2 µs plus 3.0 for the sum of partials; eight warps with
    twice the pairs take 38.0 plus 2.1. One warp takes 15.8 but spills. With dsum both kernels take 22.3 together.

    If these make no more than two programs per multiprocessor, tiles are small. Both kernels, in µs (with two warps;
    PyTorch): 27² pairs, 8 heads, bf16 8.7 (15.2; 26.8), fp32 9.0 (16.3; 71.8), 64² pairs, 4 heads, bf16 8.3 (12.1;
    38.5).
    """
    rows = min(2048 // _column_block(channels), 16)
    if channels % 16:  # loads are narrow and each needs an address, so a thread takes fewer
        rows //= 2
    rows = max(rows, 1)
    return small_config(channels) if pairs <= 2 * rows * multiprocessors else EdgeNormConfig(num_warps=2, ROWS=rows)


def edge_gradient_config(channels: int, *_: int) -> EdgeNormConfig:
    """Return tiles for a backward without dxn: one warp per 1024 elements, half the pairs of the tiles above.

    Without dxn the compiler chooses another layout, in which the tiles above spill. 16,384 pairs of 128 channels in
    float32 take 18.3 µs on an H200 with the sum of partials, and 31.7 with two warps.
    """
    columns = _column_block(channels)
    return EdgeNormConfig(num_warps=min(max(columns // 1024, 1), 8), ROWS=max(min(1024 // columns, 8), 1))


def _arguments(
    plan: Plan, config_of: Callable[[int, int, int], EdgeNormConfig], x: Operand, norm_weight: Operand,
    norm_bias: Operand | None, edge_weight: Operand, transposed: bool, eps: float, *others: Operand,
) -> tuple[EdgeNormConfig, int, dict[str, object]]:  # fmt: skip
    """Return the configuration, the number of programs and the arguments that both kernels take."""
    batch, residues, _, channels = x.shape
    for operand in (x, norm_weight, edge_weight, *others, *([norm_bias] if norm_bias else [])):
        if not torch.empty_strided(operand.shape, operand.strides, device="meta").is_contiguous():
            raise NotWalkable(f"strides {operand.strides} have gaps")
    pairs = batch * residues**2
    default = config_of(channels, pairs, plan.multiprocessors)
    config = plan.choose(
        default, bucket(channels), x.dtype, *(("few pairs",) if default == small_config(channels) else ())
    )
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
