"""The cases that triangle multiplication is tried on, its cost, and its rivals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.triangle_multiply.operator import NAME, triangle_multiply
from tilesmith.ops.triangle_multiply.parameters import OPTIONAL, Parameters, shapes
from tilesmith.ops.triangle_multiply.reference import reference
from tilesmith.spec import Case, Cost, Layout, Spec, Work

WITHOUT_BIASES = ("n256", "n512", "crops")  # as cuEquivariance measures itself: norms alone have a bias


def _hidden(case: Case) -> int:
    """Return the case's hidden channels; few by default, because the interpreter runs one matrix product at a time."""
    return case.sizes.get("hidden", 3)


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    batch, residues, channels, hidden = case.batch, case.residues, case.channels, _hidden(case)

    def made(*shape: int) -> Tensor:
        weight = torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5
        # Equal rows would leave the output norm nothing but rounding errors.
        return weight if layout.name == "expanded" else layout(weight)

    def near_one(size: int) -> Tensor:
        return layout(1 + torch.randn(size, dtype=dtype, device=device) / 4)

    places = torch.arange(batch * residues**2, device=device)
    inputs: dict[str, Any] = {
        "z": layout(torch.randn(batch, residues, residues, channels, dtype=dtype, device=device)),
        "direction": "incoming" if case.name == "incoming" else "outgoing",
        "mask": (places % 7 != 3).view(batch, residues, residues),
    }
    wanted = shapes(channels, hidden)
    for name in sorted(wanted, key=OPTIONAL.__contains__):  # optional ones last
        if name not in OPTIONAL or case.name not in WITHOUT_BIASES:
            inputs[name] = near_one(*wanted[name]) if name.endswith("norm_weight") else made(*wanted[name])
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
        # The backward reads z and dy and writes dz. Each product of the forward has two in the backward.
        backward=Work(bytes=3 * z_bytes + 2 * weights, flops=2 * (projections + product)),
    )


@flat_arguments
def cuequivariance(
    z: Tensor, direction: str, mask: Tensor | None, parameters: Parameters[Tensor], residual: bool = False
) -> Tensor:
    from cuequivariance_torch import triangle_multiplicative_update  # type: ignore[import-not-found]  # may be absent

    if any(getattr(parameters, name) is not None for name in OPTIONAL):
        raise NotImplementedError("cuEquivariance is compared without biases: not all of its versions take them")
    update: Tensor = triangle_multiplicative_update(
        z, direction, None if mask is None else mask.to(z.dtype),
        norm_in_weight=parameters.norm_weight, norm_in_bias=parameters.norm_bias,
        p_in_weight=parameters.projection_weight, g_in_weight=parameters.gate_weight,
        norm_out_weight=parameters.output_norm_weight, norm_out_bias=parameters.output_norm_bias,
        p_out_weight=parameters.output_weight, g_out_weight=parameters.output_gate_weight,
    )  # fmt: skip
    return z + update if residual else update


SPEC = Spec(
    name=NAME,
    op=triangle_multiply,
    reference=reference,
    # Operands, product, normed product, projection, gate. Besides, the norm of a fully masked product magnifies the
    # rounding errors of its gradient.
    roundings=8,
    formula="y_ij = σ(g(zn)_ij) · o(norm(Σ_k a_ik · b_jk)), a, b = mask · σ(g'(zn)) · p(zn), zn = norm(z)",
    cases=[
        # A norm over very few channels magnifies rounding errors, so these cases have more.
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
