"""Block sizes and the launch, forward and backward."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.rope.kernel import rope_kernel
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class RopeConfig(Config):
    """Each program takes HEADS heads at POSITIONS positions at a time, TURNS times."""

    HEADS: int = 8
    TURNS: int = 4
    POSITIONS: int = 4


def rope_config(pairs: int, heads: int, element_bytes: int) -> RopeConfig:
    """Return the default: 16 bytes of each half of a head per thread and turn, up to 32 heads per program.

    With up to 32 heads, the tables, each as large as a head, add little to the bytes read through the caches.

    q of 32 heads and k of 8, 4 × 2048 positions of 64 elements in bf16 on an H200 (HEADS, TURNS, POSITIONS):
    (8, 4, 4) 22.5 µs each way, (16, 2, 2) 25.4, (1, 4, 32) 23.4, (32, 1, 1) 29.5; a plain copy of both takes 23.9.
    Loading a head only after rotating the one before took 28.5 to 30.3.
    """
    warps = 4
    threads = 32 * warps
    rows = min(max(threads * 16 // element_bytes // bucket(pairs), 1), threads)
    side_by_side = min(bucket(heads), 8, rows)
    turns = min(bucket(heads) // side_by_side, 4)
    return RopeConfig(num_warps=warps, HEADS=side_by_side, TURNS=turns, POSITIONS=rows // side_by_side)


@kernels("rope_forward")
def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k)


@forward.plan
def plan_forward(
    plan: Plan, q: Operand, k: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int
) -> tuple[Operand, Operand]:  # fmt: skip
    return _plan_rotation(plan, q, k, cos, sin, interleaved, rotary_dim, inverse=False)


@kernels("rope_backward")
def backward(
    dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q and k: dq and dk rotated back."""
    return torch.empty_like(dq), torch.empty_like(dk)


@backward.plan
def plan_backward(
    plan: Plan, dq: Operand, dk: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int
) -> tuple[Operand, Operand]:  # fmt: skip
    return _plan_rotation(plan, dq, dk, cos, sin, interleaved, rotary_dim, inverse=True)


def _plan_rotation(
    plan: Plan, q: Operand, k: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int, *, inverse: bool
) -> tuple[Operand, Operand]:  # fmt: skip
    rotated_q, rotated_k = plan.empty_like(q), plan.empty_like(k)
    batch, q_heads, positions, head_dim = q.shape
    pairs, k_heads = rotary_dim // 2, k.shape[1]
    default = rope_config(pairs, max(q_heads, k_heads), q.element_bytes)
    config = plan.choose(default, "pairs", bucket(pairs), q.dtype)
    heads = config.HEADS * config.TURNS
    chunks = triton.cdiv(q_heads, heads) + triton.cdiv(k_heads, heads)
    plan.launch(
        rope_kernel, (batch * triton.cdiv(positions, config.POSITIONS) * chunks if head_dim else 0,), config,
        q_ptr=q, k_ptr=k, cos_ptr=cos, sin_ptr=sin, rotated_q_ptr=rotated_q, rotated_k_ptr=rotated_k,
        q_strides=q.strides, k_strides=k.strides, cos_strides=_table_strides(cos), sin_strides=_table_strides(sin),
        rotated_q_strides=rotated_q.strides, rotated_k_strides=rotated_k.strides,
        n_positions=positions, q_heads=q_heads, k_heads=k_heads, n_pairs=pairs, n_rest=head_dim - rotary_dim,
        inverse=int(inverse),
        COMPACT=cos.shape[-1] != rotary_dim, INTERLEAVED=interleaved,
        COMPUTE=compute_dtype(q.dtype, k.dtype, cos.dtype, sin.dtype),
        PAIRS=bucket(pairs), REST=bucket(head_dim - rotary_dim) if head_dim > rotary_dim else 0,
    )  # fmt: skip
    return rotated_q, rotated_k


def _table_strides(table: Operand) -> tuple[int, ...]:
    """Return the strides of batch, position and column; zero for the batch where all sequences share one table."""
    if len(table.shape) == 2:
        return (0, *table.strides)
    return (0 if table.shape[0] == 1 else table.strides[0], *table.strides[1:])
