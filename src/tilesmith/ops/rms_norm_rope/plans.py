"""Forward and backward as launches, and the tiles of their kernels."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.rms_norm_rope.kernels import rms_norm_rope_backward_kernel, rms_norm_rope_forward_kernel
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class NormRopeConfig(Config):
    """Each program takes ROWS rows at a time; a row is one head at one position."""

    ROWS: int = 16


def norm_rope_config(pairs: int, rows: int) -> NormRopeConfig:
    """Return about 2048 elements for four warps: 16 bytes of each half per thread and turn."""
    return NormRopeConfig(num_warps=4, ROWS=max(1, min(bucket(rows), 1024 // bucket(pairs), 64)))


@kernels("rms_norm_rope_forward")
def forward(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k)


@forward.plan
def plan_forward(
    plan: Plan, q: Operand, k: Operand, q_weight: Operand, k_weight: Operand, cos: Operand, sin: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    rotated_q, rotated_k = plan.empty_like(q), plan.empty_like(k)
    batch, q_heads, positions, head_dim = q.shape
    q_rows, k_rows = batch * q_heads * positions, batch * k.shape[1] * positions
    pairs = head_dim // 2
    default = norm_rope_config(max(pairs, 1), max(q_rows, k_rows))
    config = plan.choose(default, "pairs", bucket(max(pairs, 1)), q.dtype)
    blocks = triton.cdiv(q_rows, config.ROWS) + triton.cdiv(k_rows, config.ROWS)
    plan.launch(
        rms_norm_rope_forward_kernel, (blocks,), config,
        q_ptr=q, k_ptr=k, rotated_q_ptr=rotated_q, rotated_k_ptr=rotated_k, q_weight_ptr=q_weight,
        k_weight_ptr=k_weight, cos_ptr=cos, sin_ptr=sin, q_strides=q.strides, k_strides=k.strides,
        rotated_q_strides=rotated_q.strides, rotated_k_strides=rotated_k.strides,
        q_weight_stride=q_weight.strides[0], k_weight_stride=k_weight.strides[0],
        cos_strides=_table_strides(cos), sin_strides=_table_strides(sin), n_positions=positions, q_heads=q_heads,
        k_heads=k.shape[1], q_rows=q_rows, k_rows=k_rows, n_pairs=pairs, eps=float(eps),
        COMPUTE=compute_dtype(q.dtype, k.dtype, q_weight.dtype, cos.dtype), PAIRS=bucket(max(pairs, 1)),
    )  # fmt: skip
    return rotated_q, rotated_k


def _table_strides(table: Operand) -> tuple[int, ...]:
    """Return the strides of batch, position and column; zero for the batch where all sequences share one table."""
    if len(table.shape) == 2:
        return (0, *table.strides)
    return (0 if table.shape[0] == 1 else table.strides[0], *table.strides[1:])


@kernels("rms_norm_rope_backward")
def backward(
    dy: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q and of its weight, or those of k; dy is the gradient of the rotated tensor."""
    return torch.empty_like(x), torch.empty_like(weight, memory_format=torch.contiguous_format)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand, cos: Operand, sin: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    dx, dweight = plan.empty_like(x), plan.empty(weight.shape, weight.dtype)
    batch, heads, positions, head_dim = x.shape
    rows, pairs = batch * heads * positions, head_dim // 2
    config = plan.choose(norm_rope_config(max(pairs, 1), rows), "pairs", bucket(max(pairs, 1)), x.dtype)
    programs = max(1, min(triton.cdiv(rows, config.ROWS), 4 * plan.multiprocessors))
    rows_per_program = triton.cdiv(triton.cdiv(rows, programs), config.ROWS) * config.ROWS
    compute = compute_dtype(dy.dtype, x.dtype, weight.dtype, cos.dtype)
    partials = plan.empty((programs, head_dim), torch.float64 if compute == tl.float64 else torch.float32)
    plan.launch(
        rms_norm_rope_backward_kernel, (programs,), config,
        dy_ptr=dy, x_ptr=x, dx_ptr=dx, weight_ptr=weight, partials_ptr=partials, cos_ptr=cos, sin_ptr=sin,
        dy_strides=dy.strides, x_strides=x.strides, dx_strides=dx.strides, weight_stride=weight.strides[0],
        cos_strides=_table_strides(cos), sin_strides=_table_strides(sin), n_positions=positions, n_heads=heads,
        n_rows=rows, rows_per_program=rows_per_program, n_pairs=pairs, eps=float(eps),
        COMPUTE=compute, PAIRS=bucket(max(pairs, 1)),
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, dweight, compute)
    return dx, dweight
