"""The elementwise kernels between the projections and attention: the gate, and the gradients of all projections.

The projections are a matrix with one row per place. Its columns are queries, keys, values and gate, of equal width; the
gate is without its bias. Both kernels are memory-bound and move every element once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.channels import load_vector, store_partial
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan

SIDES = 4  # queries, keys, values, gate


@triton.jit
def load_opening(projections_ptr, gate_bias_ptr, rows, columns, mask, n_columns, COMPUTE: tl.constexpr):
    """Return σ(gate + bias). The gate is the last quarter of the projections."""
    pointers = projections_ptr + rows[:, None] * (4 * n_columns) + (3 * n_columns + columns)[None, :]
    gate = tl.load(pointers, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    return tl.sigmoid(gate + load_vector(gate_bias_ptr, columns, columns < n_columns, COMPUTE))


@triton.jit(do_not_specialize=["n_rows"])
def projected_gate_kernel(
    x_ptr, projections_ptr, gate_bias_ptr, y_ptr, n_rows, n_columns,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute y = x · σ(gate + bias)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    opening = load_opening(projections_ptr, gate_bias_ptr, rows, columns, mask, n_columns, COMPUTE)
    offsets = rows[:, None] * n_columns + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
    tl.store(y_ptr + offsets, (x * opening).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows"])
def projections_gradient_kernel(
    dgated_ptr, attended_ptr, projections_ptr, gate_bias_ptr, dq_ptr, dk_ptr, dv_ptr, dprojections_ptr, partials_ptr,
    n_rows, n_columns, COMPUTE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of queries, keys, values and gates side by side, and partial sums for the gate's bias."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    blocks = tl.cdiv(n_columns, COLUMNS)
    side = tl.program_id(1) // blocks
    columns = tl.program_id(1) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    offsets = rows[:, None] * n_columns + columns[None, :]
    results = dprojections_ptr + rows[:, None] * (4 * n_columns) + (side * n_columns + columns)[None, :]
    if side < 3:
        source_ptr = tl.where(side == 0, dq_ptr, tl.where(side == 1, dk_ptr, dv_ptr))
        tl.store(results, tl.load(source_ptr + offsets, mask=mask, other=0.0), mask=mask)
    else:
        opening = load_opening(projections_ptr, gate_bias_ptr, rows, columns, mask, n_columns, COMPUTE)
        dgated = tl.load(dgated_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
        attended = tl.load(attended_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)  # [ROWS, COLUMNS]
        dgate = dgated * attended * opening * (1 - opening)  # [ROWS, COLUMNS]
        tl.store(results, dgate.to(dprojections_ptr.dtype.element_ty), mask=mask)
        partials = partials_ptr + tl.program_id(0).to(tl.int64) * n_columns
        store_partial(partials, columns, columns < n_columns, dgate)


@dataclass(frozen=True)
class GateConfig(Config):
    """Each program takes ROWS × COLUMNS elements."""

    ROWS: int = 32
    COLUMNS: int = 128


def gate_config(columns: int) -> GateConfig:
    """Return tiles of 4096 elements: sixteen per thread of eight warps in every tensor."""
    block = min(max(bucket(columns), 16), 128)
    return GateConfig(num_warps=8, ROWS=4096 // block, COLUMNS=block)


@kernels("attention_update_gated")
def gated(x: Tensor, projections: Tensor, gate_bias: Tensor) -> Tensor:
    """Return x · σ(gate + bias) of contiguous matrices. The gate is the last quarter of the projections' columns."""
    return torch.empty_like(x)


@gated.plan
def plan_gated(plan: Plan, x: Operand, projections: Operand, gate_bias: Operand) -> Operand:
    rows, columns = x.shape
    y = plan.empty_like(x)
    config = plan.choose(gate_config(columns), bucket(columns), x.dtype)
    plan.launch(
        projected_gate_kernel, (triton.cdiv(rows, config.ROWS), triton.cdiv(columns, config.COLUMNS)), config,
        x_ptr=x, projections_ptr=projections, gate_bias_ptr=gate_bias, y_ptr=y, n_rows=rows, n_columns=columns,
        COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    return y


@kernels("attention_update_projections_gradient")
def projections_gradient(
    dgated: Tensor, attended: Tensor, projections: Tensor, gate_bias: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of all projections in one matrix, and of the gate's bias. All are contiguous matrices."""
    return torch.empty_like(projections), torch.empty_like(gate_bias)


@projections_gradient.plan
def plan_projections_gradient(
    plan: Plan, dgated: Operand, attended: Operand, projections: Operand, gate_bias: Operand, dq: Operand, dk: Operand,
    dv: Operand,
) -> tuple[Operand, Operand]:  # fmt: skip
    rows, columns = dgated.shape
    dprojections, dgate_bias = plan.empty_like(projections), plan.empty_like(gate_bias)
    config = plan.choose(gate_config(columns), bucket(columns), dgated.dtype)
    programs = triton.cdiv(rows, config.ROWS)
    partials = plan.empty((programs, columns), torch.promote_types(dgated.dtype, torch.float32))
    plan.launch(
        projections_gradient_kernel, (programs, SIDES * triton.cdiv(columns, config.COLUMNS)), config,
        dgated_ptr=dgated, attended_ptr=attended, projections_ptr=projections, gate_bias_ptr=gate_bias,
        dq_ptr=dq, dk_ptr=dk, dv_ptr=dv, dprojections_ptr=dprojections, partials_ptr=partials,
        n_rows=rows, n_columns=columns, COMPUTE=compute_dtype(dgated.dtype),
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, dgate_bias, compute_dtype(dgated.dtype))
    return dprojections, dgate_bias
