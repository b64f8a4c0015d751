"""The tiles of the portable kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import triton

from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Plan
from tilesmith.ops.triangle_multiply.problem import SMALLEST_BLOCK, Problem, block


@dataclass(frozen=True)
class RowsConfig(Config):
    """Each program takes ROWS pairs. A projection takes BLOCK_OUTPUTS outputs and BLOCK_INPUTS inputs at a time.

    Where BLOCK_INPUTS is all inputs, the program holds the normed rows.
    """

    ROWS: int = 64
    BLOCK_OUTPUTS: int = 64
    BLOCK_INPUTS: int = 64


class Tile(NamedTuple):
    """A row of the table below, for up to 128 channels."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


# By kernel and kind of element. Every program reads the weights, so more pairs a program are better. Gradients hold
# sums for all channels too, and single precision takes several tensor core products. These are the largest tiles that
# compile for A100, H100 and MI300 without register spill at 128 channels. Hopper: the fastest of eleven on an H200 that
# do not spill with any Triton release. Forward tiles take 38 µs each at 256 residues; none of five others was faster.
# Two-byte elements are normed once and held. Hopper multiplies by weights in shared memory, transposed or not; on other
# GPUs, and with more channels, weights and sums take too many registers for that. "wide": the fastest of eight for 256
# channels on an H200; at 256 residues the gradients take 468 and 640 µs, 838 and 2,310 with the portable tiles, though
# both spill registers, 168 bytes at most.
TILES = {
    ("project", "two bytes"): Tile(rows=128, outputs=64, inputs=256, warps=8, stages=2),
    ("project", "more"): Tile(rows=32, outputs=32, inputs=32, warps=4, stages=2),
    ("output", "two bytes"): Tile(rows=128, outputs=32, inputs=256, warps=8, stages=2),
    ("output", "more"): Tile(rows=32, outputs=32, inputs=32, warps=4, stages=2),
    ("output gradient", "two bytes on Hopper"): Tile(rows=64, outputs=16, inputs=256, warps=4, stages=3),
    ("output gradient", "two bytes, wide, on Hopper"): Tile(rows=64, outputs=128, inputs=64, warps=4, stages=1),
    ("output gradient", "two bytes"): Tile(rows=64, outputs=32, inputs=256, warps=8, stages=2),
    ("output gradient", "more"): Tile(rows=16, outputs=16, inputs=16, warps=4, stages=2),
    ("project gradient", "two bytes on Hopper"): Tile(rows=64, outputs=32, inputs=256, warps=4, stages=2),
    ("project gradient", "two bytes, wide, on Hopper"): Tile(rows=64, outputs=128, inputs=64, warps=4, stages=2),
    ("project gradient", "two bytes"): Tile(rows=64, outputs=32, inputs=64, warps=8, stages=2),
    ("project gradient", "more"): Tile(rows=16, outputs=16, inputs=16, warps=8, stages=2),
}


def choose_rows(plan: Plan, problem: Problem, kernel: str) -> RowsConfig:
    """Return the configuration of a kernel: a tuned one for these sizes, else the default."""
    sizes = block(problem.residues), block(problem.channels), block(problem.hidden), problem.z.dtype
    return plan.choose(rows_config(problem, kernel, plan.architecture.target), kernel, *sizes)


def rows_config(problem: Problem, kernel: str, target: str) -> RowsConfig:
    """Return the default configuration of a kernel on a target."""
    widest = max(block(problem.channels), block(problem.hidden))
    two_bytes = problem.z.element_bytes == 2
    kind = "two bytes" if two_bytes else "more"
    width = "" if widest <= 128 else ", wide,"
    on_target = f"{kind}{width} on Hopper" if target == "cuda:90" else kind
    tile = TILES.get((kernel, on_target), TILES[kernel, kind])
    rows = min(_narrowed(tile.rows, widest), block(problem.residues))
    fewest_warps = 2 if two_bytes else 4
    return RowsConfig(
        num_warps=min(tile.warps, max(rows * widest // 256, fewest_warps)), num_stages=tile.stages,
        ROWS=rows, BLOCK_OUTPUTS=min(_narrowed(tile.outputs, widest), widest), BLOCK_INPUTS=min(tile.inputs, widest),
    )  # fmt: skip


def grid(problem: Problem, config: RowsConfig) -> tuple[int]:
    """Return the grid: a program takes ROWS pairs ij of one i."""
    return (problem.batch * problem.residues * triton.cdiv(problem.residues, config.ROWS),)


def _narrowed(size: int, widest: int) -> int:
    """Scale a size chosen for 128 channels down to more channels."""
    return max(size * 128 // max(widest, 128), SMALLEST_BLOCK)
