"""How the gradient of a norm goes through its rows: one choice and one planner for all norms.

Three forms:

- one sweep, for rows that fit in registers: each of a fixed number of programs goes through its share of the rows,
  computes dx, and adds up its part of the parameters' gradients, with the next rows already on their way from memory;
- in cache, for wider rows: as before, but a row is read twice, the second time from cache, where it lies because each
  multiprocessor has one row at a time. The registers hold the sums for the parameters alone;
- two sweeps, for rows whose sums do not fit either, and for rows whose columns are apart in memory: the first finds the
  statistics of each row, the second goes through the matrix in tiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Operand, Plan

Sweeps = Mapping[int, tuple[int, int, int, int]]
"""By the block that covers a row: rows at a time, warps, programs per multiprocessor, tiles on their way."""


@dataclass(frozen=True)
class BackwardConfig(Config):
    """Each program takes ROWS × BLOCK_SIZE elements at a time, with PIPELINE such tiles on their way from memory.

    BLOCK_SIZE covers the row in the form of one sweep. `in_cache` chooses between the two forms for wider rows; a row
    that comes from cache at the second reading is read FIRST_BLOCK_SIZE columns at a time at the first.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    PIPELINE: int = 1
    programs_per_multiprocessor: int = 1
    in_cache: bool = False
    FIRST_BLOCK_SIZE: int = 4096


@dataclass(frozen=True)
class Forms:
    """The kernels of one norm's gradient. They take their arguments by the same names, each those it needs."""

    one_sweep: Any
    in_cache: Any
    statistics: Any
    tiles: Any
    statistics_per_row: int
    apart: BackwardConfig  # for rows whose columns are apart in memory: neighbouring rows are read together
    sweeps: Sweeps
    most_cached_bytes: int  # of a row in all the tensors that are read


def backward_config(
    walk: Rows, bytes_read: int, forms: Forms, multiprocessors: int, shared_bytes: int
) -> BackwardConfig:
    """`bytes_read` are those of an element in all the tensors that are read."""
    reads_another = len(walk.strides) > 3  # beside x and dy: its addresses take registers too
    if walk.column_strides[0] != 1:
        return replace(forms.apart, ROWS=forms.apart.ROWS // 2) if reads_another else forms.apart
    block_size = bucket(walk.columns)
    if block_size > max(forms.sweeps):
        row_bytes = walk.columns * bytes_read
        in_cache = row_bytes <= forms.most_cached_bytes and _aligned(walk)
        if in_cache and row_bytes <= forms.most_cached_bytes // 2:  # two at once: one reads while the other writes
            return BackwardConfig(num_warps=8, BLOCK_SIZE=4096, programs_per_multiprocessor=2, in_cache=True)
        if in_cache:
            return BackwardConfig(num_warps=16, BLOCK_SIZE=4096, FIRST_BLOCK_SIZE=8192, in_cache=True)
        # 4096×32768 bf16 on an H200: 325 µs (2.48 TB/s), the same within 1 % for all of 24 shapes of tile. The two
        # sweeps read x and dy twice: 5 elements moved where one sweep moves 3, so 2.56 TB/s is the most this form can.
        return BackwardConfig(num_warps=8, ROWS=1, BLOCK_SIZE=2048, programs_per_multiprocessor=4)
    rows, warps, programs, stages = forms.sweeps[max(block_size, min(forms.sweeps))]
    if block_size <= 256 and reads_another:
        rows //= 2
    if block_size >= 4096 and not _aligned(walk):  # narrow loads, each with an address: less for every thread
        rows, warps = (rows // 2, warps) if rows > 1 else (rows, 2 * warps)
    rows = min(rows, bucket(walk.rows))
    takes_turns = bucket(walk.rows) > rows * programs * multiprocessors
    stage_bytes = programs * rows * block_size * bytes_read  # of all programs of a multiprocessor
    # In a single turn a pipeline only costs: 4096×128 bf16 takes 4.4 µs without, 4.8 with two stages.
    pipeline = stages if takes_turns and stages * stage_bytes <= shared_bytes else 1
    return BackwardConfig(
        num_warps=warps, ROWS=rows, BLOCK_SIZE=block_size, PIPELINE=pipeline, programs_per_multiprocessor=programs
    )


def _aligned(walk: Rows) -> bool:
    """Whether all rows can be read in full vectors. With the addresses of narrow ones, registers would not suffice for
    the sums of a wide row."""
    return walk.columns % 16 == 0 and all(stride % 16 == 0 for strides in walk.strides for stride in strides)


def plan_sweeps(
    plan: Plan, forms: Forms, config: BackwardConfig, walk: Rows, arguments: Mapping[str, object],
    sums: Sequence[str], sum_dtype: torch.dtype,
) -> dict[str, Operand]:  # fmt: skip
    """Put on the plan what computes dx, and the wanted sums over rows; returns each sum's rows of partial sums."""
    flags = {f"{name.upper()}_GRADIENT": name in sums for name in ("weight", "bias")}
    arguments = {**arguments, **flags, "weight_partials_ptr": None, "bias_partials_ptr": None}
    whole_rows = walk.columns <= config.BLOCK_SIZE
    if whole_rows or config.in_cache:
        shares = min(triton.cdiv(walk.rows, config.ROWS), plan.multiprocessors * config.programs_per_multiprocessor)
    else:
        shares, rows_per_share = _shares_of_tiles(config, walk, plan.multiprocessors)
    partials = {name: plan.empty((shares, walk.columns), sum_dtype) for name in sums}
    arguments |= {f"{name}_partials_ptr": operand for name, operand in partials.items()}
    blocks = triton.cdiv(walk.columns, config.BLOCK_SIZE)
    if whole_rows:
        _launch(plan, forms.one_sweep, shares if walk.columns else 0, config, arguments)
    elif config.in_cache:
        x = arguments["x_ptr"]
        assert isinstance(x, Operand)
        neighbours = 16 // x.element_bytes  # what one thread reads at once
        _launch(plan, forms.in_cache, shares, config, {**arguments, "BLOCKS": blocks, "NEIGHBOURS": neighbours})
    else:
        arguments["statistics_ptr"] = plan.empty((walk.rows, forms.statistics_per_row), sum_dtype)
        arguments["rows_per_share"] = rows_per_share
        _launch(plan, forms.statistics, triton.cdiv(walk.rows, config.ROWS) if walk.columns else 0, config, arguments)
        _launch(plan, forms.tiles, shares * blocks, config, arguments)
    return partials


def _shares_of_tiles(config: BackwardConfig, walk: Rows, multiprocessors: int) -> tuple[int, int]:
    """Into how many shares the rows are cut for a sweep in tiles, so that tiles are programs enough; and their rows."""
    blocks_per_row = triton.cdiv(walk.columns, config.BLOCK_SIZE)
    shares = max(multiprocessors * config.programs_per_multiprocessor // max(blocks_per_row, 1), 1)
    rows_per_share = triton.cdiv(triton.cdiv(walk.rows, shares), config.ROWS) * config.ROWS
    return triton.cdiv(walk.rows, rows_per_share) if walk.rows else 0, rows_per_share


def _launch(plan: Plan, kernel: Any, programs: int, config: BackwardConfig, arguments: Mapping[str, object]) -> None:
    known = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    plan.launch(kernel, (programs,), config, **known)


def sum_dtype(x: Operand) -> torch.dtype:
    """What sums over x are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
