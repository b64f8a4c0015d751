"""Attention along each column of an alignment: a residue attends to itself in other sequences.

s sequences of n residues are n problems of attention with s queries and s keys: 4·n·s²·h·d flops forward for h heads of
size d. The computation is that of triangle attention's ending node, without a bias. The kernels read columns in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.triangle_attention import grid
from tilesmith.ops.triangle_attention.grid import (
    GRID_ATTENTION,
    gradient_by,
    grid_kernels,
    prepared,
    require_grid,
    save,
)
from tilesmith.ops.triangle_attention.grid_cases import SMALL, grid_cost, grid_inputs, sdpa_over_grid, transposed
from tilesmith.spec import Case, Spec

NAME = "msa_column_attention"
forward, backward = grid_kernels(NAME)


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, gate: Tensor | None = None, scale: float | None = None
) -> Tensor:  # fmt: skip
    return grid.reference(q, k, v, None, mask, False, gate, scale)


def prepare(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, gate: Tensor | None, scale: float | None
) -> tuple[Any, ...]:  # fmt: skip
    return prepared(q, k, v, None, mask, False, scale)


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient_by(backward), prepare=prepare,
    options=GRID_ATTENTION,
)  # fmt: skip
def msa_column_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return σ(gate) · softmax(scale · q·kᵀ) · v along the sequences, for each residue.

    - q, k, v and `gate` are [batch, sequences, residues, heads, head size], in any strides. The output lies
      as q does.
    - `mask`: boolean [batch, sequences, residues], true for places that may be attended to. One that sees none gets
      zeros.
    - `scale`: 1/√(head size) unless given.
    """
    require_grid(NAME, q, k, v, None, mask, False, gate, scale, "sequences, residues")
    return q


def pytorch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
    return sdpa_over_grid(q, k, v, None, mask, False, gate)


SPEC = Spec(
    name=NAME,
    op=msa_column_attention,
    reference=reference,
    roundings=6,  # scores, weights, their sum, output; of gradients that of the weights and what is left of it
    formula="o_si = σ(g_si) · Σ_t softmax_t(scale · q_si·k_ti) · v_ti",
    cases=[
        *map(transposed, SMALL),
        Case("crop", columns=256, rows=128, head=32, batch=1, heads=8),
        Case("wide", columns=256, rows=128, head=32, batch=1, heads=16),
    ],
    make_inputs=partial(grid_inputs, along_columns=False, biased=False),
    cost=partial(grid_cost, along_columns=False, biased=False),
    rivals={"torch": pytorch},
)
