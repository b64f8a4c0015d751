"""Attention along each sequence of an alignment, with pairs of residues as a bias.

s sequences of n residues are s problems of attention with n queries and n keys that share one bias: 4·s·n²·h·d flops
forward for h heads of size d. The computation is that of triangle attention (`triangle_attention/grid.py`); here a row
is a sequence. The kernels are those of `attention/forms.py`.
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
from tilesmith.ops.triangle_attention.grid_cases import SMALL, grid_cost, grid_inputs, sdpa_over_grid
from tilesmith.spec import Case, Spec

NAME = "msa_row_attention"
forward, backward = grid_kernels(NAME)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    gate: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    return grid.reference(q, k, v, bias, mask, True, gate, scale)


def prepare(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, gate: Tensor | None,
    scale: float | None,
) -> tuple[Any, ...]:  # fmt: skip
    return prepared(q, k, v, bias, mask, True, scale)


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient_by(backward), prepare=prepare,
    options=GRID_ATTENTION,
)  # fmt: skip
def msa_row_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return σ(gate) · softmax(scale · q·kᵀ + bias) · v along the residues of each sequence.

    - q, k, v and `gate` are [batch, sequences, residues, heads, head size], in any strides. The output lies
      as q does.
    - `bias`: [batch, heads, residues, residues] as [query, key], shared by all sequences. It has a gradient.
    - `mask`: boolean [batch, sequences, residues], true for residues that may be attended to. One that sees none gets
      zeros.
    - `scale`: 1/√(head size) unless given.
    """
    require_grid(NAME, q, k, v, bias, mask, True, gate, scale, "sequences, residues")
    return q


def pytorch(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:  # fmt: skip
    return sdpa_over_grid(q, k, v, bias, mask, True, gate)


SPEC = Spec(
    name=NAME,
    op=msa_row_attention,
    reference=reference,
    roundings=6,  # scores, weights, their sum, output; of gradients that of the weights and what is left of it
    formula="o_si = σ(g_si) · Σ_j softmax_j(scale · q_si·k_sj + b_ij) · v_sj",
    cases=[*SMALL, Case("crop", rows=128, columns=256, head=32, batch=1, heads=8)],
    make_inputs=partial(grid_inputs, along_columns=True, biased=True),
    cost=partial(grid_cost, along_columns=True, biased=True),
    rivals={"torch": pytorch},
)
