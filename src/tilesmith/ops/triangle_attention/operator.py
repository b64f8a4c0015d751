"""The operator: its meaning, checks and spec. `grid.py` has what all attentions over a grid share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import require_flag
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
from tilesmith.spec import Case, Cost, Layout, Spec

NAME = "triangle_attention"
forward, backward = grid_kernels(NAME)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, starting: bool = True,
    gate: Tensor | None = None, scale: float | None = None, mean_without_keys: bool = False,
) -> Tensor:  # fmt: skip
    return grid.reference(q, k, v, _third_edge(bias, starting), mask, starting, gate, scale, mean_without_keys)


def _third_edge(bias: Tensor | None, starting: bool) -> Tensor | None:
    """Return the bias as [query, key]: the third edge of ij and ik is jk, of ij and kj it is ki."""
    return bias if bias is None or starting else bias.transpose(-1, -2)


def prepare(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, starting: bool, gate: Tensor | None,
    scale: float | None, mean_without_keys: bool,
) -> tuple[Any, ...]:  # fmt: skip
    return prepared(q, k, v, _third_edge(bias, starting), mask, starting, scale, mean_without_keys)


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient_by(backward), prepare=prepare,
    options=GRID_ATTENTION,
)  # fmt: skip
def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    starting: bool = True,
    gate: Tensor | None = None,
    scale: float | None = None,
    mean_without_keys: bool = False,
) -> Tensor:
    """Return σ(gate) · softmax(scale · q·kᵀ + bias) · v over pairs of residues that share one of the two.

    - q, k, v and `gate` are [batch, i, j, heads, head size], in any strides. The output is laid out as q.
    - `starting=True`: a pair ij attends to the pairs ik of the same row. `starting=False`, the ending node: to the
      pairs kj of the same column. Neither copies anything.
    - `bias`: [batch, heads, n, n], the third edge of the triangle in the order of the pair representation: for the
      starting node the score of ij and ik gets bias[j, k], for the ending node that of ij and kj gets bias[k, i]. It
      has a gradient. Fastest where keys, which are k, are neighbours in memory.
    - `mask`: boolean [batch, i, j], true for pairs that may be attended to. A pair that sees none gets zeros; with
      `mean_without_keys` it gets the mean of v, as in libraries that give a masked key a score of −10⁹.
    - `scale`: 1/√(head size) unless given.
    """
    require_flag(NAME, "starting", starting)
    require_flag(NAME, "mean_without_keys", mean_without_keys)
    require_grid(NAME, q, k, v, bias, mask, starting, gate, scale, "i, j")
    return q


ENDING = "ending"  # the case of the ending node


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    starting = case.name != ENDING
    made = grid_inputs(case, dtype, device, layout, along_columns=starting, biased=True)
    return {**made, "starting": starting}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    return grid_cost(case, dtype, along_columns=case.name != ENDING, biased=True)


def pytorch(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, starting: bool = True,
    gate: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return sdpa_over_grid(q, k, v, _third_edge(bias, starting), mask, starting, gate)


def cuequivariance(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, starting: bool = True,
    gate: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from cuequivariance_torch import triangle_attention as theirs  # type: ignore[import-not-found]  # may be absent

    if bias is None:
        raise NotImplementedError("cuEquivariance's triangle attention needs a bias")
    rows = [one if starting else one.transpose(1, 2) for one in (q, k, v)]
    allowed = torch.ones(q.shape[:3], dtype=torch.bool, device=q.device) if mask is None else mask
    allowed = allowed if starting else allowed.transpose(1, 2)
    third = _third_edge(bias, starting)
    assert third is not None
    made = theirs(*(one.transpose(2, 3) for one in rows), third[:, None], allowed[:, :, None, None, :])
    attended = made.transpose(2, 3) if starting else made.permute(0, 3, 1, 2, 4)
    return attended if gate is None else attended * torch.sigmoid(gate)  # type: ignore[no-any-return]  # untyped


SPEC = Spec(
    name=NAME,
    op=triangle_attention,
    reference=reference,
    roundings=6,  # scores, weights, their sum, output; of gradients that of the weights and what is left of it
    formula="o_ij = σ(g_ij) · Σ_k softmax_k(scale · q_ij·k_ik + b_jk) · v_ik",
    cases=[
        *SMALL,
        Case("ending", rows=11, columns=4, head=9),
        # TMA cannot load its bias, but can load the other tensors.
        Case("ragged", rows=2, columns=37, head=32, heads=1),
        Case("n256", rows=256, columns=256, head=32, batch=1, heads=4),
        Case("n512", rows=512, columns=512, head=32, batch=1, heads=4),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": pytorch, "cuequivariance": cuequivariance},
)
