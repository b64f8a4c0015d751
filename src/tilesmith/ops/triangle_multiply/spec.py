"""The sizes that triangle multiplication is tried on, what it must cost, and what else a user could call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.triangle_multiply.operator import NAME, triangle_multiply
from tilesmith.ops.triangle_multiply.reference import reference
from tilesmith.spec import Case, Cost, Layout, Spec, Work

BARE = (
    "n256",
    "n512",
    "crops",
)  # cases without biases of projections and gates, as cuEquivariance measures itself


def _hidden(case: Case) -> int:
    """Few where a case does not say how many: the interpreter takes one matrix product after the other."""
    return case.sizes.get("hidden", 3)


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    batch, residues, channels, hidden = case.batch, case.residues, case.channels, _hidden(case)

    def made(*shape: int) -> Tensor:
        weight = torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5
        # Rows all alike would leave the output norm nothing but rounding.
        return weight if layout.name == "expanded" else layout(weight)

    def near_one(size: int) -> Tensor:
        return layout(1 + torch.randn(size, dtype=dtype, device=device) / 4)

    places = torch.arange(batch * residues**2, device=device)
    inputs: dict[str, Any] = {
        "z": layout(torch.randn(batch, residues, residues, channels, dtype=dtype, device=device)),
        "direction": "incoming" if case.name == "incoming" else "outgoing",
        "mask": (places % 7 != 3).view(batch, residues, residues),
        "norm_weight": near_one(channels), "norm_bias": made(channels),
        "projection_weight": made(2 * hidden, channels), "gate_weight": made(2 * hidden, channels),
        "output_norm_weight": near_one(hidden), "output_norm_bias": made(hidden),
        "output_weight": made(channels, hidden), "output_gate_weight": made(channels, channels),
    }  # fmt: skip
    if case.name not in BARE:
        biases = {"projection_bias": 2 * hidden, "gate_bias": 2 * hidden}
        biases |= {"output_bias": channels, "output_gate_bias": channels}
        inputs |= {name: made(size) for name, size in biases.items()}
    if case.name == "incoming":
        inputs["residual"] = True
    return inputs


def cost(case: Case, dtype: torch.dtype) -> Cost:
    pairs, hidden = case.batch * case.residues**2, _hidden(case)
    weights = case.channels * (5 * hidden + case.channels) * dtype.itemsize
    projections = 2 * pairs * case.channels * (5 * hidden + case.channels)
    product = 2 * pairs * case.residues * hidden
    z_bytes = pairs * case.channels * dtype.itemsize
    return Cost(
        forward=Work(bytes=2 * z_bytes + weights, flops=projections + product),
        # z and dy come in, dz goes out; each product of the forward has two in the backward.
        backward=Work(bytes=3 * z_bytes + 2 * weights, flops=2 * (projections + product)),
    )


def cuequivariance(
    z: Tensor, direction: str, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, projection_weight: Tensor,
    gate_weight: Tensor, output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor,
    output_gate_weight: Tensor, projection_bias: Tensor | None = None, gate_bias: Tensor | None = None,
    output_bias: Tensor | None = None, output_gate_bias: Tensor | None = None, residual: bool = False,
) -> Tensor:  # fmt: skip
    from cuequivariance_torch import triangle_multiplicative_update  # type: ignore[import-not-found]  # may be absent

    if any(bias is not None for bias in (projection_bias, gate_bias, output_bias, output_gate_bias)):
        raise NotImplementedError("cuEquivariance is compared without biases, which not all of its versions take")
    update: Tensor = triangle_multiplicative_update(
        z, direction, None if mask is None else mask.to(z.dtype),
        norm_in_weight=norm_weight, norm_in_bias=norm_bias, p_in_weight=projection_weight, g_in_weight=gate_weight,
        norm_out_weight=output_norm_weight, norm_out_bias=output_norm_bias, p_out_weight=output_weight,
        g_out_weight=output_gate_weight,
    )  # fmt: skip
    return z + update if residual else update


SPEC = Spec(
    name=NAME,
    op=triangle_multiply,
    reference=reference,
    # Operands, product, normed product, projection, gate; and the norm of a product that is masked all over magnifies
    # what rounding leaves of its gradient.
    roundings=8,
    formula="y_ij = σ(g(zn)_ij) · o(norm(Σ_k a_ik · b_jk)), a, b = mask · σ(g'(zn)) · p(zn), zn = norm(z)",
    cases=[
        # A norm over very few channels magnifies whatever rounding leaves of them.
        Case("one", batch=1, residues=1, channels=5, hidden=4),
        Case("odd", batch=2, residues=2, channels=7),
        Case("incoming", batch=1, residues=3, channels=9, hidden=8),
        Case("n256", batch=1, residues=256, channels=128, hidden=128),
        Case("n512", batch=1, residues=512, channels=128, hidden=128),
        Case("crops", batch=40, residues=128, channels=128, hidden=128),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference, "cuequivariance": cuequivariance},
)
