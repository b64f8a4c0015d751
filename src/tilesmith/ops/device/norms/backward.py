"""Two forms of a norm's backward, and one planner for all norms.

- One sweep, for rows that fit in registers. A fixed number of programs each go through their part of the rows, compute
  dx, and add up their part of the parameters' gradients. The next rows are prefetched.
- Two sweeps, for rows whose columns are apart in memory, and for wide rows that no team can hold. The first sweep finds
  two sums of each row, the second goes through the matrix in tiles.

`any_width.py` and `team_backward.py` have one more form each.

Each norm lists its forms with its own kernels and tables; `plan_gradient` asks them in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norms.rows import factor_of
from tilesmith.ops.device.row_chunks import VECTOR_BYTES, has_edges
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.forms import FormWithDefault, first_default, first_form
from tilesmith.ops.runtime.layout import Rows, as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class BackwardConfig(Config):
    """Each program takes ROWS × BLOCK_SIZE elements at a time, with PIPELINE such tiles in flight.

    BLOCK_SIZE covers the row in the form of one sweep.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    PIPELINE: int = 1
    programs_per_multiprocessor: int = 1
    form: str = "one sweep"  # or "two sweeps", "any width" or "team"
    most_chunks: int = 1  # of BLOCK_SIZE columns, for one program of a team
    PACKED: bool = False  # pairs of 16-bit elements share a register in the form of any width
    registers: int = 0  # of a thread, at most; 0: the compiler decides

    @property
    def registers_at_launch(self) -> int | None:
        return self.registers or None


class Sweep(NamedTuple):
    """How the form of one sweep goes through rows of one width."""

    rows: int  # per tile
    warps: int
    programs: int  # per multiprocessor
    stages: int  # tiles in flight


@dataclass(frozen=True)
class GradientProblem:
    """The backward of one norm: its rows, the kernels' arguments, and the configuration once it is chosen."""

    plan: Plan
    walk: Rows  # of x, dy, dx and, if there is one, dsum
    x: Operand
    bytes_read: int  # per element, of all tensors that are read
    sums: Sequence[str]  # the parameters whose gradients are wanted
    arguments: Mapping[str, object]
    config: BackwardConfig = BackwardConfig()

    @property
    def columns_apart(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return self.walk.column_strides[0] != 1

    @property
    def reads_dsum(self) -> bool:
        """Whether dsum is read beside x and dy. Its addresses take registers too."""
        return len(self.walk.strides) > 3

    @property
    def aligned(self) -> bool:
        """Whether loads of 16 elements are aligned in every row. Narrow loads need more registers for addresses."""
        return not has_edges(self.walk, 16)

    @property
    def vector(self) -> int:
        """The elements of a whole vector."""
        return VECTOR_BYTES // self.x.element_bytes

    @property
    def has_edges(self) -> bool:
        """Whether some row starts or ends inside a vector."""
        return has_edges(self.walk, self.vector)

    @property
    def must_be_told(self) -> bool:
        """Whether the compiler cannot know that all rows are whole vectors."""
        return not self.has_edges and not self.aligned

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype of sums over rows."""
        return torch.float64 if self.x.dtype == torch.float64 else torch.float32

    @property
    def most_programs(self) -> int:
        """The programs that all multiprocessors hold at once."""
        return self.plan.multiprocessors * self.config.programs_per_multiprocessor

    @property
    def row_programs(self) -> int:
        """The number of persistent programs that go through the rows, ROWS at a time."""
        groups: int = triton.cdiv(self.walk.rows, self.config.ROWS)
        return min(groups, self.most_programs)

    def columns_apart_config(self, default: BackwardConfig, form: str) -> BackwardConfig:
        """Return a form's configuration for columns apart, with half the rows where dsum takes registers."""
        return replace(default, ROWS=default.ROWS // 2 if self.reads_dsum else default.ROWS, form=form)

    def plan_partial_sums(self, parts: int) -> dict[str, Operand]:
        """Return memory for the wanted sums: [parts, columns] each."""
        return {name: self.plan.empty((parts, self.walk.columns), self.sum_dtype) for name in self.sums}

    def launch(self, kernel: Any, programs: int, **arguments: object) -> None:
        """Launch a kernel with those of the arguments that it takes."""
        every = {**self.arguments, **arguments}
        known = {name: every[name] for name in every if name in kernel.arg_names}
        self.plan.launch(kernel, (programs,), self.config, **known)


@dataclass(frozen=True)
class OneSweep:
    """Whole rows in registers."""

    kernel: Any
    sweeps: Mapping[int, Sweep]  # by the power of two that covers a row
    columns_apart: BackwardConfig  # neighbouring rows are neighbours in memory: one tile reads them together

    def default(self, problem: GradientProblem) -> BackwardConfig | None:
        if problem.columns_apart:
            fits = problem.walk.columns <= self.columns_apart.BLOCK_SIZE
            return problem.columns_apart_config(self.columns_apart, "one sweep") if fits else None
        walk, block_size = problem.walk, bucket(problem.walk.columns)
        if block_size > max(self.sweeps):
            return None
        rows, warps, programs, stages = self.sweeps[max(block_size, min(self.sweeps))]
        if block_size <= 256 and problem.reads_dsum:
            rows //= 2
        if block_size >= 4096 and not problem.aligned:  # narrow loads, each with an address: fewer per thread
            rows, warps = (rows // 2, warps) if rows > 1 else (rows, 2 * warps)
        rows = min(rows, bucket(walk.rows))
        several_turns = bucket(walk.rows) > rows * programs * problem.plan.multiprocessors
        stage_bytes = programs * rows * block_size * problem.bytes_read  # of all programs of a multiprocessor
        # A pipeline costs time in a single turn: 4096×128 bf16 takes 4.4 µs without, 4.8 with two stages.
        fits = stages * stage_bytes <= problem.plan.architecture.shared_bytes
        pipeline = stages if several_turns and fits else 1
        return BackwardConfig(
            num_warps=warps, ROWS=rows, BLOCK_SIZE=block_size, PIPELINE=pipeline, programs_per_multiprocessor=programs
        )

    def takes(self, problem: GradientProblem) -> bool:
        return problem.walk.columns <= problem.config.BLOCK_SIZE

    def suits(self, problem: GradientProblem) -> bool:
        return problem.config.form == "one sweep"

    def plan(self, problem: GradientProblem) -> dict[str, Operand]:
        partials = problem.plan_partial_sums(problem.row_programs)
        programs = problem.row_programs if problem.walk.columns else 0
        problem.launch(self.kernel, programs, **pointers_to(partials))
        return partials


@dataclass(frozen=True)
class TwoSweeps:
    """A sweep for two sums of each row, then one in tiles for dx and the parameters' gradients."""

    rows_kernel: Any
    tiles_kernel: Any
    columns_apart: BackwardConfig

    def default(self, problem: GradientProblem) -> BackwardConfig:
        if problem.columns_apart:
            return problem.columns_apart_config(self.columns_apart, "two sweeps")
        # 4096×32768 bf16 on an H200: 325 µs (2.48 TB/s), within 1 % for 24 shapes of tile. Two sweeps move 5 elements
        # where one sweep moves 3, so 2.56 TB/s is this form's limit.
        return BackwardConfig(
            num_warps=8, ROWS=1, BLOCK_SIZE=2048, programs_per_multiprocessor=4, form="two sweeps"
        )  # fmt: skip

    def takes(self, problem: GradientProblem) -> bool:
        return True

    def suits(self, problem: GradientProblem) -> bool:
        return True

    def plan(self, problem: GradientProblem) -> dict[str, Operand]:
        walk, config = problem.walk, problem.config
        blocks = triton.cdiv(walk.columns, config.BLOCK_SIZE)
        # As many parts of the rows as make tiles for every multiprocessor.
        parts = max(problem.most_programs // max(blocks, 1), 1)
        rows_per_part = triton.cdiv(triton.cdiv(walk.rows, parts), config.ROWS) * config.ROWS
        parts = triton.cdiv(walk.rows, rows_per_part) if walk.rows else 0
        partials = problem.plan_partial_sums(parts)
        arguments = {
            **pointers_to(partials), "rows_per_part": rows_per_part,
            "row_results_ptr": problem.plan.empty((walk.rows, 2), problem.sum_dtype),
        }  # fmt: skip
        problem.launch(self.rows_kernel, triton.cdiv(walk.rows, config.ROWS), **arguments)
        problem.launch(self.tiles_kernel, parts * blocks, **arguments)
        return partials


def pointers_to(partials: Mapping[str, Operand]) -> dict[str, Operand]:
    return {f"{name}_partials_ptr": operand for name, operand in partials.items()}


class NormGradient(NamedTuple):
    """The operands of a norm's backward. `dsum` is the gradient that is added to dx.

    `statistics` are what LayerNorm's forward kept of each row. RMSNorm computes its own, with `eps`.
    With `one_plus` the factor is 1 + weight.
    """

    dy: Operand
    x: Operand
    weight: Operand | None
    dsum: Operand | None = None
    eps: float = 0.0
    statistics: Operand | None = None
    one_plus: bool = False


def plan_gradient(
    plan: Plan,
    forms: Sequence[FormWithDefault[GradientProblem, dict[str, Operand], BackwardConfig]],
    given: NormGradient,
    sums: Sequence[str],
    **flags: object,
) -> tuple[Operand, dict[str, Operand]]:
    """Plan dx, and the sums over rows that `sums` names. Return dx, and each sum's rows of partial sums."""
    dy, x, weight, dsum, eps, statistics, one_plus = given
    dx = plan.empty_like(x)
    others = {} if dsum is None else {"dsum": dsum}
    walk = as_rows(x.shape, x.strides, dy.strides, dx.strides, *(operand.strides for operand in others.values()))
    arguments = {
        "dy_ptr": dy, "x_ptr": x, "dx_ptr": dx, "weight_ptr": weight, "dsum_ptr": dsum, "eps": float(eps),
        "statistics_ptr": statistics,
        "weight_stride": weight.strides[0] if weight else 0, "dsum_strides": None,
        "weight_partials_ptr": None, "bias_partials_ptr": None, "dsum_partials_ptr": None,
        "HAS_WEIGHT": factor_of(weight, one_plus), "SUM_GRADIENT": dsum is not None,
        "WEIGHT_GRADIENT": "weight" in sums, "BIAS_GRADIENT": "bias" in sums,
        "COMPUTE": compute_dtype(x.dtype), **flags, **walk.arguments("x", "dy", "dx", *others),
    }  # fmt: skip
    bytes_read = x.element_bytes + dy.element_bytes + (dsum.element_bytes if dsum else 0)
    problem = GradientProblem(plan, walk, x, bytes_read, sums, arguments)
    config = plan.choose(first_default(forms, problem), walk.columns_bucket, x.dtype)
    problem = replace(problem, config=config)
    return dx, first_form(forms, problem).plan(problem)
