"""The sizes that attention over a grid is tried on, what it must cost, and what else a user could call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.attention.spec import sdpa
from tilesmith.ops.gate import reference as gate_reference
from tilesmith.ops.triangle_attention.grid import as_grid, as_heads
from tilesmith.spec import Case, Cost, Layout, Work

BATCH, HEADS = 1, 2  # of cases that do not say how many: few programs for the interpreter

# The same for all these operators, with heads of one size: then strides of the same kind share compiled code.
SMALL = (
    Case("one row", rows=1, columns=5, head=9),
    Case("odd", rows=3, columns=11, head=9),
    Case("gated", rows=2, columns=11, head=9, batch=2),
)


def transposed(case: Case) -> Case:
    """Return the case with rows and columns exchanged. The side of independent sequences comes first."""
    others = {name: size for name, size in case.sizes.items() if name not in ("rows", "columns")}
    return Case(case.name, columns=case.rows, rows=case.columns, **others)


def _sizes(case: Case) -> tuple[int, int]:
    """Return batch and heads."""
    return case.sizes.get("batch", BATCH), case.sizes.get("heads", HEADS)


def grid_inputs(
    case: Case, dtype: torch.dtype, device: str, layout: Layout, *, along_columns: bool, biased: bool
) -> dict[str, Any]:  # fmt: skip
    """Return inputs; the case named "gated" has a gate."""

    def made(*shape: int) -> Tensor:
        return layout(torch.randn(shape, dtype=dtype, device=device))

    batch, heads = _sizes(case)
    grid = batch, case.rows, case.columns, heads, case.head
    length = case.columns if along_columns else case.rows
    inputs: dict[str, Any] = {name: made(*grid) for name in ("q", "k", "v")}
    if biased:
        inputs["bias"] = made(batch, heads, length, length)
    places = torch.arange(batch * case.rows * case.columns, device=device)
    inputs["mask"] = (places % 5 != 2).view(grid[:3])
    if case.name == "gated":
        inputs["gate"] = made(*grid)
    return inputs


def grid_cost(case: Case, dtype: torch.dtype, *, along_columns: bool, biased: bool) -> Cost:
    """Return the cost: each tensor moves once; two products forward (q·kᵀ, weights·v), five backward."""
    batch, heads = _sizes(case)
    length = case.columns if along_columns else case.rows
    queries = batch * case.rows * case.columns * heads
    grid = queries * case.head * dtype.itemsize
    bias = batch * heads * length**2 * dtype.itemsize if biased else 0
    gate = grid if case.name == "gated" else 0
    product = 2 * queries * length * case.head
    return Cost(
        forward=Work(bytes=4 * grid + gate + bias + 4 * queries, flops=2 * product),
        backward=Work(bytes=8 * grid + 2 * gate + 2 * bias + 4 * queries, flops=5 * product),
    )


def sdpa_over_grid(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool, gate: Tensor | None
) -> Tensor:  # fmt: skip
    """Call PyTorch's fused attention on each member of the batch.

    PyTorch takes bias and mask as one tensor, which is as large as all scores.
    """
    attend: Callable[..., Tensor] = sdpa()
    members = []
    for n in range(q.shape[0]):
        heads = (as_heads(one[n], along_columns) for one in (q, k, v))
        allowed = None if mask is None else (mask[n] if along_columns else mask[n].t())
        of_member = None if bias is None else bias[n][None]
        made = attend(*heads, False, of_member, allowed, None, None, 0.0, 0.0, None)
        members.append(as_grid(made, along_columns))
    attended = members[0][None] if len(members) == 1 else torch.stack(members)
    return attended if gate is None else gate_reference(attended, gate)
