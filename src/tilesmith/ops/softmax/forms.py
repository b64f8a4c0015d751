"""The three forms that forward and backward have in common: whole rows in registers, rows in blocks, rows in shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.runs import Runs, as_runs, run_members, run_offsets
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Strides
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class Rows:
    """Tensors of one shape as rows along one dimension, all walked in the same order."""

    runs: Runs
    columns: int
    column_strides: Strides

    @property
    def columns_apart(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return self.column_strides[0] != 1

    @property
    def in_full_vectors(self) -> bool:
        """Whether all rows can be read in full vectors. Narrow ones have an address each, which fills the registers."""
        return self.columns % 16 == 0 and all(stride % 16 == 0 for one in self.runs.strides for stride in one)

    def arguments(self, **tensors: Operand) -> dict[str, object]:
        """Kernel arguments for the walk over these tensors, which are named in the order they were walked in."""
        arguments: dict[str, object] = {
            "inner_rows": self.runs.inner,
            "outer_rows": self.runs.sizes[1],
            "n_columns": self.columns,
            "ALIGNED_ROWS": self.runs.aligned,
            "COMPUTE": compute_dtype(*(tensor.dtype for tensor in tensors.values())),
        }
        for name, tensor, strides, column_stride in zip(
            tensors, tensors.values(), self.runs.strides, self.column_strides, strict=True
        ):
            arguments |= {f"{name}_ptr": tensor, f"{name}_strides": (*strides, column_stride)}
        return arguments


def rows_along(dim: int, shape: tuple[int, ...], *strides: Strides) -> Rows:
    """Rows along one dimension; the others are walked in the first tensor's memory order."""
    if not shape:
        shape, strides = (1,), ((1,),) * len(strides)
    others = [*range(dim), *range(dim + 1, len(shape))]
    return Rows(
        as_runs(tuple(shape[other] for other in others), *(tuple(one[other] for other in others) for one in strides)),
        shape[dim],
        tuple(one[dim] for one in strides),
    )


@triton.jit
def there(group, inner_rows, ROWS: tl.constexpr):
    """Which rows of a group there are, as a column."""
    return (run_members(group, inner_rows, ROWS) < inner_rows)[:, None]


@triton.jit
def row_pointers(ptr, strides, group, inner_rows, outer_rows, ROWS: tl.constexpr):
    """Pointers to the first elements of a group's rows, as a column."""
    return ptr + run_offsets(group, inner_rows, outer_rows, strides, ROWS)[:, None]


@triton.jit
def column_offsets(columns, stride):
    """Where columns lie, from the first element of their row, as a row."""
    return (columns.to(tl.int64) * stride)[None, :]


@dataclass(frozen=True)
class Forms:
    """One direction's kernels. In shares, `statistics` leaves some numbers for each share, and `shares` reads them."""

    registers: Any
    blocks: Any
    statistics: Any
    shares: Any
    numbers_per_share: int


@dataclass(frozen=True)
class RowConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time.

    In registers, PIPELINE groups of rows are on their way from memory; with more than one, a fixed number of programs
    takes turns. In shares, the rows are cut so that there are about as many programs.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    PIPELINE: int = 1
    programs_per_multiprocessor: int = 4
    form: str = "registers"  # or "blocks" or "shares"


def config_for_columns_apart(rows: Rows) -> RowConfig:
    """Neighbouring rows are neighbours in memory, so they are read together: up to 16 elements for each thread."""
    block_size = bucket(rows.columns)
    if block_size <= 128:
        together = min(bucket(rows.runs.inner), 4096 // block_size)
        return RowConfig(num_warps=8, ROWS=together, BLOCK_SIZE=block_size)
    together = min(bucket(rows.runs.inner), 32)
    return RowConfig(num_warps=8, ROWS=together, BLOCK_SIZE=2048 // together, form="blocks")


def shared_out(rows: Rows, config: RowConfig, multiprocessors: int) -> RowConfig:
    """In shares, if there are fewer groups of rows than multiprocessors and the rows are worth a second launch."""
    few = rows.runs.count(config.ROWS) < multiprocessors
    if config.form == "blocks" and few and rows.columns * config.ROWS >= 32768:
        # Small blocks, so that a single row makes work for every multiprocessor.
        return replace(config, num_warps=8, BLOCK_SIZE=2048 // config.ROWS, form="shares")
    return config


def plan_forms(
    plan: Plan, forms: Forms, rows: Rows, config: RowConfig, arguments: dict[str, object], element_bytes: int
) -> None:
    """Put on the plan what the configuration's form launches."""
    arguments = {**arguments, "GROUP": _vectors_per_thread(plan, rows, config, element_bytes)}
    groups = rows.runs.count(config.ROWS) if rows.columns else 0
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    if config.form == "registers" and rows.columns <= config.BLOCK_SIZE:
        turns = groups if config.PIPELINE == 1 else min(groups, programs)
        _launch(plan, forms.registers, turns, config, {**arguments, "n_groups": groups})
        return
    blocks = triton.cdiv(rows.columns, config.BLOCK_SIZE)
    if config.form != "shares" or not groups:
        _launch(plan, forms.blocks, groups, config, {**arguments, "BLOCKS": blocks})
        return
    # A power of two, so that rows of many lengths have their compiled code in common.
    blocks_per_share = bucket(triton.cdiv(blocks, max(programs // groups, 1)))
    shares = triton.cdiv(blocks, blocks_per_share)
    sums = torch.float64 if arguments["COMPUTE"] == tl.float64 else torch.float32
    arguments = {
        **arguments, "statistics_ptr": plan.empty((forms.numbers_per_share, groups * config.ROWS, shares), sums),
        "n_groups": groups, "n_shares": shares, "BLOCKS": blocks_per_share, "SHARES": bucket(shares),
    }  # fmt: skip
    _launch(plan, forms.statistics, groups * shares, config, arguments)
    _launch(plan, forms.shares, groups * shares, config, arguments)


def _vectors_per_thread(plan: Plan, rows: Rows, config: RowConfig, element_bytes: int) -> int:
    """How many loads of 16 bytes each thread makes of a block of one row; their elements meet in its lanes."""
    if rows.columns_apart or config.ROWS > 1:
        return 1
    threads = config.num_warps * plan.architecture.warp_size
    return max(config.BLOCK_SIZE * element_bytes // (threads * 16), 1)


def _launch(plan: Plan, kernel: Any, programs: int, config: RowConfig, arguments: dict[str, object]) -> None:
    taken = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    plan.launch(kernel, (programs,), config, **taken)
