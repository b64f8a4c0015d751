"""One call as its planners see it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.matrices import Matrix
from tilesmith.ops.matmul.planning.problem import Product
from tilesmith.ops.matmul.planning.product import plan_product
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision

SMALLEST_BLOCK = 16  # what tl.dot takes at least along each side
NOT_SPECIALISED = [
    "n_residues", "n_channels", "n_hidden",
    *(f"{name}_{side}_stride" for name in ("z", "y", "dy", "dz", "mask") for side in ("batch", "i", "j")),
]  # fmt: skip
ROW_MULTIPLE = 16  # rows of channels' matrices are padded to it: the copy engine wants them to start at 16 bytes


@dataclass(frozen=True)
class Problem:
    """z is [batch, n, n, channels]; projection and gate give the hidden channels of a, and after them those of b."""

    z: Operand
    mask: Operand | None
    norm_weight: Operand
    norm_bias: Operand
    projection_weight: Operand
    projection_bias: Operand | None
    gate_weight: Operand
    gate_bias: Operand | None
    output_norm_weight: Operand
    output_norm_bias: Operand
    output_weight: Operand
    output_bias: Operand | None
    output_gate_weight: Operand
    output_gate_bias: Operand | None
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
        return self.output_weight.shape[1]

    @property
    def product_dtype(self) -> torch.dtype:
        return product_dtype(self.z.dtype)

    @property
    def weights(self) -> tuple[Operand, ...]:
        return self.projection_weight, self.gate_weight, self.output_weight, self.output_gate_weight

    @property
    def vectors(self) -> tuple[Operand | None, ...]:
        """Of the norms, and the biases."""
        return (
            self.norm_weight, self.norm_bias, self.output_norm_weight, self.output_norm_bias,
            self.projection_bias, self.gate_bias, self.output_bias, self.output_gate_bias,
        )  # fmt: skip

    def matrices_shape(self) -> tuple[int, ...]:
        """That of an n × n matrix for each hidden channel."""
        return matrices_shape(self.z.shape, self.hidden)

    def arguments(self, plan: Plan, *names: str, **others: Operand) -> dict[str, object]:
        """What every kernel takes: sizes, the operands of these names, and others."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        operands = {**{name: own[name] for name in names}, **others}
        strided: dict[str, Operand] = {name: operands[name] for name in ("z", "y", "dy", "dz") if name in operands}
        unit = self._unit(operands, strided)
        residues_unit = 16 if self.residues % 16 == 0 else 1
        arguments: dict[str, object] = {
            "n_residues": self.residues // residues_unit, "n_channels": self.channels // unit,
            "n_hidden": self.hidden // unit, "eps": float(self.eps), "UNIT": unit, "RESIDUES_UNIT": residues_unit,
            "BLOCK_CHANNELS": block(self.channels), "BLOCK_HIDDEN": block(self.hidden),
            "COMPUTE": compute_dtype(self.z.dtype), "PRECISION": product_precision(plan, self.z.dtype, self.tf32),
        }  # fmt: skip
        for name, operand in operands.items():
            arguments[f"{name}_ptr"] = operand
            if name in strided or name == "mask":
                divisor = unit if name in strided else 1
                strides = operand.strides[:3] if operand else (0, 0, 0)
                for side, stride in zip(("batch", "i", "j"), strides, strict=True):
                    arguments[f"{name}_{side}_stride"] = stride // divisor
        return arguments

    def _unit(self, operands: dict[str, Operand | None], strided: dict[str, Operand]) -> int:
        """What channels and strides are counted in: 16 where all are multiples of it, so that a kernel knows, and one
        compiled kernel serves all of them. Kernels count on channels that lie side by side."""
        for name, operand in operands.items():
            gaps = operand is not None and operand.shape[-1] > 1 and operand.strides[-1] != 1 and name != "mask"
            if operand is not None and (gaps or (name.endswith("weight") and not _is_contiguous(operand))):
                raise NotWalkable(f"{name} of strides {operand.strides} has gaps between its channels")
        sizes = [self.channels, self.hidden, *(stride for one in strided.values() for stride in one.strides[:3])]
        aligned = all(operand.aligned for operand in operands.values() if operand is not None)
        return 16 if aligned and all(size % 16 == 0 for size in sizes) else 1

    def grid(self, config: RowsConfig) -> tuple[int]:
        """A program takes ROWS pairs ij of one i."""
        return (self.batch * self.residues * triton.cdiv(self.residues, config.ROWS),)

    def plan_product(self, plan: Plan, left: Operand, right: Operand, result: Operand, *, turned: str) -> None:
        """Put on the plan the product of each channel's matrices; `turned` names which are transposed first."""
        sides = {}
        for name, operand in (("left", left), ("right", right), ("result", result)):
            of_batch, of_channel, of_row, of_column = operand.strides
            matrix = Matrix(operand, self.residues, self.residues, (of_row, of_column), (of_batch, of_channel))
            sides[name] = matrix.transposed() if name in turned else matrix
        batch = self.batch, self.hidden
        plan_product(plan, Product(sides["left"], sides["right"], sides["result"], batch, self.tf32))

    def plan_weight_gradient(self, plan: Plan, gradient: Operand, x: Operand) -> Operand:
        """Put on the plan gradientᵀ · x, of matrices with a row for each pair."""
        (_, outputs), (_, inputs) = gradient.shape, x.shape
        dweight = plan.empty((outputs, inputs), x.dtype)
        left = Matrix(gradient, self.pairs, outputs, (outputs, 1), ()).transposed()
        right = Matrix(x, self.pairs, inputs, (inputs, 1), ())
        plan_product(plan, Product(left, right, Matrix(dweight, outputs, inputs, (inputs, 1), ()), (), self.tf32))
        return dweight


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over residues are held in: half precision does not reach far enough."""
    return torch.float32 if dtype == torch.float16 else dtype


def matrices_shape(z_shape: tuple[int, ...] | torch.Size, hidden: int) -> tuple[int, ...]:
    batch, residues = z_shape[:2]
    return batch, hidden, residues, (residues + ROW_MULTIPLE - 1) // ROW_MULTIPLE * ROW_MULTIPLE


def _is_contiguous(operand: Operand) -> bool:
    rows, columns = (1, *operand.shape)[-2:]
    return rows <= 1 or operand.strides[0] == columns


def block(size: int) -> int:
    return max(bucket(size), SMALLEST_BLOCK)


@dataclass(frozen=True)
class RowsConfig(Config):
    """Each program takes ROWS pairs, and of projections BLOCK_OUTPUTS outputs and BLOCK_INPUTS inputs at a time; normed
    rows are held where that is all inputs."""

    ROWS: int = 64
    BLOCK_OUTPUTS: int = 64
    BLOCK_INPUTS: int = 64


# By kernel and kind: rows, outputs, inputs, warps, stages. Pairs enough that the weights, which every program reads,
# are not most of what it reads; but gradients hold sums for all channels beside, and single precision is multiplied in
# several steps. These are the largest found that compile for an A100, an H100 and an MI300 without spilling at 128
# channels. Those for Hopper are the fastest of eleven on an H200 that do not spill with any release of Triton. Of the
# forward's, which take 38 µs each for 256 residues, none of five others was faster.
# Elements of two bytes are normed once and held. Hopper multiplies by weights that lie in shared memory, both ways
# round; elsewhere, and with more channels, they and the sums take too many registers for that.
_ROWS = {
    ("project", "two bytes"): (128, 64, 256, 8, 2),
    ("project", "more"): (32, 32, 32, 4, 2),
    ("output", "two bytes"): (128, 32, 256, 8, 2),
    ("output", "more"): (32, 32, 32, 4, 2),
    ("output gradient", "two bytes on Hopper"): (64, 16, 256, 4, 3),
    ("output gradient", "two bytes"): (64, 32, 256, 8, 2),
    ("output gradient", "more"): (16, 16, 16, 4, 2),
    ("project gradient", "two bytes on Hopper"): (64, 32, 256, 4, 2),
    ("project gradient", "two bytes"): (64, 32, 64, 8, 2),
    ("project gradient", "more"): (16, 16, 16, 8, 2),
}


def rows_config(problem: Problem, kernel: str, target: str) -> RowsConfig:
    widest = max(block(problem.channels), block(problem.hidden))
    two_bytes = problem.z.element_bytes == 2
    kind = "two bytes" if two_bytes else "more"
    on_target = f"{kind} on Hopper" if target == "cuda:90" and widest <= 128 else kind
    rows, outputs, inputs, warps, stages = _ROWS.get((kernel, on_target), _ROWS[kernel, kind])
    rows = min(_narrowed(rows, widest), block(problem.residues))
    smallest = 2 if two_bytes else 4
    return RowsConfig(
        num_warps=min(warps, max(rows * widest // 256, smallest)), num_stages=stages,
        ROWS=rows, BLOCK_OUTPUTS=min(_narrowed(outputs, widest), widest), BLOCK_INPUTS=min(inputs, widest),
    )  # fmt: skip


def _narrowed(size: int, widest: int) -> int:
    """What of a size chosen for 128 channels is left where there are more."""
    return max(size * 128 // max(widest, 128), SMALLEST_BLOCK)


def choose_rows(plan: Plan, problem: Problem, kernel: str) -> RowsConfig:
    sizes = block(problem.residues), block(problem.channels), block(problem.hidden), problem.z.dtype
    return plan.choose(rows_config(problem, kernel, plan.architecture.target), kernel, *sizes)


def compute(problem: Problem) -> tl.dtype:
    return compute_dtype(problem.z.dtype)
