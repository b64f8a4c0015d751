"""One call as its planners see it: sizes, operands, and the GEMMs over residues that every form shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.matrices import Matrix
from tilesmith.ops.matmul.planning.problem import Product
from tilesmith.ops.matmul.planning.product import plan_product
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision
from tilesmith.ops.triangle_multiply.parameters import Parameters

SMALLEST_BLOCK = 16  # tl.dot takes at least 16 along each side
ROW_MULTIPLE = 16  # rows of a channel's matrix are padded to 16 elements: TMA needs rows that start at 16 bytes
OF_PAIRS = ("z", "y", "dy", "dz")  # tensors [batch, n, n, channels] whose strides a kernel takes


@dataclass(frozen=True)
class Problem:
    """z is [batch, n, n, channels]. Projection and gate have 2 · hidden rows: those for a, then those for b."""

    z: Operand
    mask: Operand | None  # [batch, n, n]
    parameters: Parameters[Operand]
    outgoing: bool
    eps: float
    tf32: bool

    @property
    def batch(self) -> int:
        return self.z.shape[0]

    @property
    def residues(self) -> int:
        return self.z.shape[1]

    @property
    def pairs(self) -> int:
        return self.batch * self.residues**2

    @property
    def channels(self) -> int:
        return self.z.shape[3]

    @property
    def hidden(self) -> int:
        return self.parameters.output_weight.shape[1]

    @property
    def product_dtype(self) -> torch.dtype:
        return product_dtype(self.z.dtype)

    def matrices_shape(self) -> tuple[int, ...]:
        """Return the shape of a, b, x and their gradients: an n × n matrix for each hidden channel, rows padded."""
        return matrices_shape(self.z.shape, self.hidden)

    def arguments(self, plan: Plan, kernel: Any, **others: Operand) -> dict[str, object]:
        """Return what a portable kernel takes: sizes, strides, the problem's operands that it names, and others."""
        own = {"z": self.z, "mask": self.mask, **self.parameters._asdict()}
        operands = {name: operand for name, operand in own.items() if f"{name}_ptr" in kernel.arg_names} | others
        unit = self._unit(operands)
        residues_unit = 16 if self.residues % 16 == 0 else 1
        arguments: dict[str, object] = {
            "n_residues": self.residues // residues_unit, "n_channels": self.channels // unit,
            "n_hidden": self.hidden // unit, "eps": float(self.eps), "UNIT": unit, "RESIDUES_UNIT": residues_unit,
            "BLOCK_CHANNELS": block(self.channels), "BLOCK_HIDDEN": block(self.hidden),
            "COMPUTE": compute_dtype(self.z.dtype), "PRECISION": product_precision(plan, self.z.dtype, self.tf32),
        }  # fmt: skip
        for name, operand in operands.items():
            arguments[f"{name}_ptr"] = operand
            if name in OF_PAIRS or name == "mask":
                arguments |= pair_strides(name, operand, unit if name in OF_PAIRS else 1)
        return arguments

    def _unit(self, operands: Mapping[str, Operand | None]) -> int:
        """Return the unit in which kernels count channels and strides: 16 where all are multiples of 16, else 1.

        A unit of 16 tells the compiler the alignment, and one compiled kernel serves all such sizes. Raise NotWalkable
        where channels are not adjacent in memory, on which the kernels rely.
        """
        for name, operand in operands.items():
            gaps = operand is not None and operand.shape[-1] > 1 and operand.strides[-1] != 1 and name != "mask"
            if operand is not None and (gaps or (name.endswith("weight") and not _is_contiguous(operand))):
                raise NotWalkable(f"{name} of strides {operand.strides} has gaps between its channels")
        of_pairs = [operands[name] for name in OF_PAIRS if name in operands]
        strides = [stride for operand in of_pairs if operand is not None for stride in operand.strides[:3]]
        aligned = all(operand.aligned for operand in operands.values() if operand is not None)
        return 16 if aligned and all(size % 16 == 0 for size in (self.channels, self.hidden, *strides)) else 1

    def plan_product(self, plan: Plan, left: Operand, right: Operand, result: Operand, *, transposed: str) -> None:
        """Put on the plan one GEMM for each channel's matrices. `transposed` names the operands to transpose."""
        sides = {}
        for name, operand in (("left", left), ("right", right), ("result", result)):
            of_batch, of_channel, of_row, of_column = operand.strides
            matrix = Matrix(operand, self.residues, self.residues, (of_row, of_column), (of_batch, of_channel))
            sides[name] = matrix.transposed() if name in transposed else matrix
        batch = self.batch, self.hidden
        plan_product(plan, Product(sides["left"], sides["right"], sides["result"], batch, self.tf32))

    def plan_x(self, plan: Plan, a: Operand, b: Operand, x: Operand) -> None:
        """Put on the plan x_ij = Σ_k a_ik · b_jk, or for incoming edges Σ_k a_ki · b_kj."""
        self.plan_product(plan, a, b, x, transposed="right" if self.outgoing else "left")

    def plan_ab_gradient(self, plan: Plan, dx: Operand, a: Operand, b: Operand, da: Operand, db: Operand) -> None:
        """Put on the plan the gradients of a and b from the gradient of their product."""
        if self.outgoing:
            self.plan_product(plan, dx, b, da, transposed="")
            self.plan_product(plan, dx, a, db, transposed="left")
        else:
            self.plan_product(plan, b, dx, da, transposed="right")
            self.plan_product(plan, a, dx, db, transposed="")

    def plan_weight_gradient(self, plan: Plan, gradient: Operand, x: Operand) -> Operand:
        """Put gradientᵀ · x on the plan and return it. Both are [batch, n, n, columns] without gaps."""
        outputs, inputs = gradient.shape[3], x.shape[3]
        gradient, x = (one.seen_as((self.pairs, one.shape[3]), (one.shape[3], 1)) for one in (gradient, x))
        dweight = plan.empty((outputs, inputs), x.dtype)
        left = Matrix(gradient, self.pairs, outputs, (outputs, 1), ()).transposed()
        right = Matrix(x, self.pairs, inputs, (inputs, 1), ())
        plan_product(plan, Product(left, right, Matrix(dweight, outputs, inputs, (inputs, 1), ()), (), self.tf32))
        return dweight

    def matrices_in_place_of(self, plan: Plan, unneeded: Operand) -> Operand:
        """Return memory for a matrix for each hidden channel: that of an operand no longer needed, if large enough."""
        shape = self.matrices_shape()
        if prod(shape) > prod(unneeded.shape):
            return plan.empty(shape, unneeded.dtype)
        _, hidden, residues, row = shape
        return unneeded.seen_as(shape, (hidden * residues * row, residues * row, row, 1))


@dataclass(frozen=True)
class Update:
    """One forward of the fused kernels: the problem, and the tensors that they write."""

    plan: Plan
    problem: Problem
    y: Operand
    a: Operand
    b: Operand
    x: Operand


@dataclass(frozen=True)
class Gradients:
    """One backward of the fused kernels: the problem, the tensors that they read, and dz, which they write."""

    plan: Plan
    problem: Problem
    dy: Operand
    a: Operand
    b: Operand
    x: Operand
    dz: Operand


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that holds sums over residues: float16 would overflow."""
    return torch.float32 if dtype == torch.float16 else dtype


def matrices_shape(z_shape: tuple[int, ...] | torch.Size, hidden: int) -> tuple[int, ...]:
    """Return [batch, hidden, n, n], with rows padded to ROW_MULTIPLE."""
    batch, residues = z_shape[:2]
    return batch, hidden, residues, (residues + ROW_MULTIPLE - 1) // ROW_MULTIPLE * ROW_MULTIPLE


def pair_strides(name: str, operand: Operand | None, unit: int = 1) -> dict[str, object]:
    """Return the strides of a tensor [batch, n, n, …] as kernels take them, in units; zeros where there is none."""
    strides = operand.strides[:3] if operand else (0, 0, 0)
    sides = zip(("batch", "i", "j"), strides, strict=True)
    return {f"{name}_{side}_stride": stride // unit for side, stride in sides}


def block(size: int) -> int:
    """Return the side of a tile that holds so many channels."""
    return max(bucket(size), SMALLEST_BLOCK)


def _is_contiguous(operand: Operand) -> bool:
    rows, columns = (1, *operand.shape)[-2:]
    return rows <= 1 or operand.strides[0] == columns
