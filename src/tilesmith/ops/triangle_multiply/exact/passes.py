"""The elementwise passes of triangle_multiply between two GEMMs, as torch operators.

`update.py` runs them where single precision must be exact. In the order of a forward, z normed to zn:

- `gated`: a and b = mask · projection · σ(gate), after projections = zn · weightsᵀ and before x = a · bᵀ.
- `product_norm`: xn, the norm of x over channels, before output = xn · weightᵀ.
- `output_gated`: y = σ(output gate) · output, plus z with `residual`.

In the backward:

- `output_gate_gradient`: doutput from dy, before dxn = doutput · weight.
- `product_norm_gradient`: dx from dxn, and the gradients of the norm's weight and bias, before da and db.
- `gate_gradient`: dprojections from dy, da and db, and the gradients of all biases, before dzn and dweights.

Each operator has one kernel in `pass_kernels.py`, whatever the sizes. `Passes` chooses its tiles. To add a pass, write
its kernel there, declare its torch operator and its plan here, and call it in `update.py`.

`projections` is [batch, n, n, 4 · hidden + channels]: the projections of a and b, their gates, and the output gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import triton
from torch import Tensor
from typing_extensions import NamedTuple  # of typing's, Python 3.10 has no generic ones

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.exact.pass_kernels import (
    triangle_gate_gradient_kernel,
    triangle_gate_kernel,
    triangle_output_gate_gradient_kernel,
    triangle_output_gate_kernel,
    triangle_product_norm_gradient_kernel,
    triangle_product_norm_kernel,
)
from tilesmith.ops.triangle_multiply.problem import block, matrices_shape, pair_strides

Value = TypeVar("Value")


class Biases(NamedTuple, Generic[Value]):
    """The biases of projections and gates."""

    projection_bias: Value | None  # [2 · hidden]
    gate_bias: Value | None  # [2 · hidden]
    output_bias: Value | None  # [channels]
    output_gate_bias: Value | None  # [channels]


@dataclass(frozen=True)
class PassConfig(Config):
    """Each program takes ROWS pairs, and COLUMNS of their channels."""

    ROWS: int = 64
    COLUMNS: int = 32


@dataclass(frozen=True)
class NormConfig(Config):
    """Each program takes ROWS pairs with all their channels."""

    ROWS: int = 32


class Passes:
    """The sizes of one call, and the tiles and launches of its passes.

    A program takes ROWS pairs (i, j) of one i where a matrix for each channel is read or stored, which lies along j.
    Elsewhere it takes any consecutive pairs.
    """

    def __init__(self, plan: Plan, batch: int, residues: int, channels: int, hidden: int, dtype: torch.dtype) -> None:
        self.plan, self.batch, self.residues, self.channels, self.hidden = plan, batch, residues, channels, hidden
        self.dtype = dtype

    @property
    def pairs(self) -> int:
        return self.batch * self.residues**2

    def tiles(self) -> PassConfig:
        """Return tiles for an elementwise pass: many pairs, because matrices are read and stored along the pairs."""
        default = PassConfig(num_warps=4, ROWS=min(64, block(self.residues)), COLUMNS=32)
        return self.plan.choose(default, *self._sizes)

    def whole_rows(self, most: int) -> NormConfig:
        """Return tiles for a norm, which takes all channels of a pair: `most` pairs at 128 channels, fewer at more."""
        rows = min(most * 128 // max(block(self.hidden), 128), block(self.residues))
        return self.plan.choose(NormConfig(num_warps=8, ROWS=rows), *self._sizes)

    @property
    def _sizes(self) -> tuple[object, ...]:
        return block(self.residues), block(self.hidden), self.dtype

    def programs(self, config: PassConfig | NormConfig) -> int:
        """Return the number of programs that take ROWS pairs of one i."""
        return self.batch * self.residues * int(triton.cdiv(self.residues, config.ROWS))

    def arguments(self, mask: Operand | None = None) -> dict[str, object]:
        """Return the sizes that kernels take, and the mask with its strides."""
        unit = 16 if self.residues % 16 == 0 else 1
        return {
            "mask_ptr": mask, **pair_strides("mask", mask),
            "n_residues": self.residues // unit, "n_pairs": self.pairs, "n_channels": self.channels,
            "n_hidden": self.hidden, "RESIDUES_UNIT": unit, "COMPUTE": compute_dtype(self.dtype),
        }  # fmt: skip

    def launch(self, kernel: Any, grid: tuple[int, ...], config: Config, **arguments: object) -> None:
        """Put a kernel on the plan with those of the arguments that it takes."""
        taken = {name: value for name, value in arguments.items() if name in kernel.arg_names}
        self.plan.launch(kernel, grid, config, **taken)

    def partials(self, rows: int, columns: int) -> Operand:
        """Return memory for partial sums, a row for each program."""
        return self.plan.empty((rows, columns), torch.promote_types(self.dtype, torch.float32))

    def sum_of_partials(self, partials: Operand) -> Operand:
        """Put on the plan the sum over rows of partial sums, and return it."""
        sums = self.plan.empty(partials.shape[1:], self.dtype)
        plan_sum_of_partials(self.plan, partials, sums, compute_dtype(self.dtype))
        return sums


def _passes_of(plan: Plan, projections: Operand, hidden: int) -> Passes:
    batch, residues, _, outputs = projections.shape
    return Passes(plan, batch, residues, outputs - 4 * hidden, hidden, projections.dtype)


@kernels("triangle_multiply_gated")
def gated(
    projections: Tensor, mask: Tensor | None, projection_bias: Tensor | None, gate_bias: Tensor | None, hidden: int
) -> tuple[Tensor, Tensor]:
    """Return a and b, a matrix for each hidden channel, rows padded."""
    shape = matrices_shape(projections.shape, hidden)
    return projections.new_empty(shape), projections.new_empty(shape)


@gated.plan
def plan_gated(
    plan: Plan, projections: Operand, mask: Operand | None, projection_bias: Operand | None, gate_bias: Operand | None,
    hidden: int,
) -> tuple[Operand, Operand]:  # fmt: skip
    passes = _passes_of(plan, projections, hidden)
    shape = matrices_shape(projections.shape, hidden)
    a, b = plan.empty(shape, projections.dtype), plan.empty(shape, projections.dtype)
    config = passes.tiles()
    passes.launch(
        triangle_gate_kernel, (passes.programs(config), 2 * triton.cdiv(hidden, config.COLUMNS)), config,
        projections_ptr=projections, projection_bias_ptr=projection_bias, gate_bias_ptr=gate_bias, a_ptr=a, b_ptr=b,
        **passes.arguments(mask),
    )  # fmt: skip
    return a, b


@kernels("triangle_multiply_product_norm")
def product_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the norm over channels of the product x, [batch, hidden, n, n], as [batch, n, n, hidden]."""
    batch, hidden, residues, _ = x.shape
    return x.new_empty(batch, residues, residues, hidden)


@product_norm.plan
def plan_product_norm(plan: Plan, x: Operand, weight: Operand, bias: Operand, eps: float) -> Operand:
    batch, hidden, residues, _ = x.shape
    passes = Passes(plan, batch, residues, 0, hidden, x.dtype)
    xn = plan.empty((batch, residues, residues, hidden), x.dtype)
    config = passes.whole_rows(32)
    passes.launch(
        triangle_product_norm_kernel, (passes.programs(config),), config,
        x_ptr=x, weight_ptr=weight, bias_ptr=bias, xn_ptr=xn, eps=float(eps), COLUMNS=block(hidden),
        **passes.arguments(),
    )  # fmt: skip
    return xn


@kernels("triangle_multiply_product_norm_gradient")
def product_norm_gradient(dxn: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of the product, rows padded, and those of the norm's weight and bias, concatenated."""
    hidden = x.shape[1]
    return x.new_empty(matrices_shape(dxn.shape, hidden)), x.new_empty(2 * hidden)


@product_norm_gradient.plan
def plan_product_norm_gradient(
    plan: Plan, dxn: Operand, x: Operand, weight: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    batch, hidden, residues, _ = x.shape
    passes = Passes(plan, batch, residues, 0, hidden, x.dtype)
    dx = plan.empty(matrices_shape(dxn.shape, hidden), x.dtype)
    config = passes.whole_rows(16)
    partials = passes.partials(passes.programs(config), 2 * hidden)
    passes.launch(
        triangle_product_norm_gradient_kernel, (passes.programs(config),), config,
        dxn_ptr=dxn, x_ptr=x, weight_ptr=weight, dx_ptr=dx, partials_ptr=partials, eps=float(eps),
        COLUMNS=block(hidden), **passes.arguments(),
    )  # fmt: skip
    return dx, passes.sum_of_partials(partials)


@kernels("triangle_multiply_output_gated")
def output_gated(
    output: Tensor, projections: Tensor, output_bias: Tensor | None, output_gate_bias: Tensor | None,
    addend: Tensor | None, hidden: int,
) -> Tensor:  # fmt: skip
    """Return σ(output gate) · output, plus the addend if there is one. The addend is contiguous."""
    return torch.empty_like(output)


@output_gated.plan
def plan_output_gated(
    plan: Plan, output: Operand, projections: Operand, output_bias: Operand | None, output_gate_bias: Operand | None,
    addend: Operand | None, hidden: int,
) -> Operand:  # fmt: skip
    passes = _passes_of(plan, projections, hidden)
    y = plan.empty_like(output)
    config = passes.tiles()
    grid = triton.cdiv(passes.pairs, config.ROWS), triton.cdiv(passes.channels, config.COLUMNS)
    passes.launch(
        triangle_output_gate_kernel, grid, config,
        output_ptr=output, projections_ptr=projections, output_bias_ptr=output_bias,
        output_gate_bias_ptr=output_gate_bias, addend_ptr=addend, y_ptr=y, **passes.arguments(),
    )  # fmt: skip
    return y


@kernels("triangle_multiply_output_gate_gradient")
def output_gate_gradient(
    dy: Tensor, output: Tensor, projections: Tensor, output_bias: Tensor | None, output_gate_bias: Tensor | None,
    hidden: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of the output before its gate, and that of its bias."""
    return torch.empty_like(output), output.new_empty(output.shape[-1])


@output_gate_gradient.plan
def plan_output_gate_gradient(
    plan: Plan, dy: Operand, output: Operand, projections: Operand, output_bias: Operand | None,
    output_gate_bias: Operand | None, hidden: int,
) -> tuple[Operand, Operand]:  # fmt: skip
    passes = _passes_of(plan, projections, hidden)
    doutput = plan.empty_like(output)
    config = passes.tiles()
    grid = triton.cdiv(passes.pairs, config.ROWS), triton.cdiv(passes.channels, config.COLUMNS)
    partials = passes.partials(grid[0], passes.channels)
    passes.launch(
        triangle_output_gate_gradient_kernel, grid, config,
        dy_ptr=dy, output_ptr=output, projections_ptr=projections, output_bias_ptr=output_bias,
        output_gate_bias_ptr=output_gate_bias, doutput_ptr=doutput, partials_ptr=partials, **passes.arguments(),
    )  # fmt: skip
    return doutput, passes.sum_of_partials(partials)


@kernels("triangle_multiply_gate_gradient")
@flat_arguments
def gate_gradient(
    dy: Tensor, da: Tensor, db: Tensor, output: Tensor, projections: Tensor, mask: Tensor | None, biases: Biases[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of all projections and gates, and the sum of each column: the gradients of all biases."""
    return torch.empty_like(projections), projections.new_empty(projections.shape[-1])


@gate_gradient.plan
@flat_arguments
def plan_gate_gradient(
    plan: Plan, dy: Operand, da: Operand, db: Operand, output: Operand, projections: Operand, mask: Operand | None,
    biases: Biases[Operand],
) -> tuple[Operand, Operand]:  # fmt: skip
    passes = _passes_of(plan, projections, da.shape[1])
    dprojections = plan.empty_like(projections)
    config = passes.tiles()
    columns = 2 * triton.cdiv(passes.hidden, config.COLUMNS) + triton.cdiv(passes.channels, config.COLUMNS)
    partials = passes.partials(passes.programs(config), projections.shape[-1])
    passes.launch(
        triangle_gate_gradient_kernel, (passes.programs(config), columns), config,
        dy_ptr=dy, da_ptr=da, db_ptr=db, output_ptr=output, projections_ptr=projections,
        **{f"{name}_ptr": bias for name, bias in biases._asdict().items()},
        dprojections_ptr=dprojections, partials_ptr=partials, **passes.arguments(mask),
    )  # fmt: skip
    return dprojections, passes.sum_of_partials(partials)
