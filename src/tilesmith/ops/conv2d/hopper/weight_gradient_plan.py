"""The launch of `weight_gradient.py`: which problems it takes, with which tiles, and how many programs share a sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton

from tilesmith.ops.conv2d.hopper.boxes import UNIT, in_groups, unit_of_rows
from tilesmith.ops.conv2d.hopper.weight_gradient import GROUPS, ROWS, conv2d_hopper_weight_gradient_kernel
from tilesmith.ops.conv2d.problem import Problem, Tiling, forward_walk, lies_in_rows, plan_sum_into, tiling_of
from tilesmith.ops.device.hopper import ProducerConfig
from tilesmith.ops.device.step_times import step_clocks, store_clocks
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class HopperWeightGradientConfig(ProducerConfig):
    """Tiles of OUTPUTS × CHANNELS of one tap, POSITIONS at a time, and a ring of STAGES such steps.

    `splits`: how many programs share the positions of a tile.
    """

    OUTPUTS: int = 128
    CHANNELS: int = 128
    POSITIONS: int = 64
    STAGES: int = 5
    splits: int = 1

    @property
    def sums(self) -> int:
        """Return the number of partial sums: warpgroups that take steps in turn have one each."""
        return self.splits * int(GROUPS.value) * int(ROWS.value) // self.OUTPUTS


TILES = tuple(
    HopperWeightGradientConfig(OUTPUTS=outputs, CHANNELS=channels, POSITIONS=positions, STAGES=stages)
    for outputs, channels, positions, stages in (
        (128, 256, 64, 4), (128, 128, 64, 5), (128, 128, 128, 3), (128, 64, 64, 6), (64, 256, 64, 4),
        (64, 128, 64, 6), (64, 64, 128, 5), (64, 32, 128, 4),
    )
)  # fmt: skip
"""None spills, and shared memory holds each."""

MOST_ROUNDS = 3  # of programs, one after the other on a multiprocessor
TOTAL_CLOCKS = 5000.0  # of the kernel that adds partial sums, beside its bytes
TOTAL_BYTES = 2000.0  # of a clock, on the whole GPU


def hopper_weight_gradient_config(problem: Problem, multiprocessors: int) -> HopperWeightGradientConfig:
    """Return the tiles and splits with the shortest predicted time, of those that a stride allows if there are any."""
    candidates = []
    for tiles in [tiles for tiles in TILES if _ends_with_blocks(problem, tiles)] or TILES:
        blocks, n_boxes = _blocks(problem, tiles), _tiling(problem, tiles).boxes
        for rounds in range(1, MOST_ROUNDS + 1):
            splits = min(max(rounds * multiprocessors // blocks, 1), n_boxes)
            candidates.append(replace(tiles, splits=splits))
    return min(candidates, key=lambda config: _clocks(problem, config, multiprocessors))


def _clocks(problem: Problem, config: HopperWeightGradientConfig, multiprocessors: int) -> float:
    rounds = triton.cdiv(_blocks(problem, config) * config.splits, multiprocessors)
    steps = triton.cdiv(_tiling(problem, config).boxes, config.splits)
    narrow = sum(config.POSITIONS for size in (problem.outputs, problem.channels) if size % (2 * UNIT))
    step = step_clocks(config.OUTPUTS, config.CHANNELS, config.POSITIONS, config.STAGES, narrow)
    clocks = rounds * (steps * step + store_clocks(4 * int(ROWS.value) * config.CHANNELS * int(GROUPS.value)))
    if config.sums > 1:
        weights = problem.outputs * problem.channels * math.prod(problem.window.kernel)
        clocks += TOTAL_CLOCKS + (4 * config.sums + 2) * weights / TOTAL_BYTES
    return float(clocks)


def _ends_with_blocks(problem: Problem, config: HopperWeightGradientConfig) -> bool:
    """Return whether blocks of channels end with them where the next column of a group follows."""
    return problem.window.stride[1] == 1 or problem.channels % config.CHANNELS == 0


def _blocks(problem: Problem, config: HopperWeightGradientConfig) -> int:
    of_outputs, of_channels = (
        triton.cdiv(problem.outputs, config.OUTPUTS),
        triton.cdiv(problem.channels, config.CHANNELS),
    )
    blocks: int = of_outputs * of_channels * math.prod(problem.window.kernel)
    return blocks


def _tiling(problem: Problem, config: HopperWeightGradientConfig) -> Tiling:
    return tiling_of(config.POSITIONS, problem.batch, *problem.counts)


def plan_hopper_weight_gradient(plan: Plan, problem: Problem, dy: Operand, x: Operand, dweight: Operand) -> bool:
    """Plan the launch and the total of its partial sums; return whether this kernel computes the problem."""
    window = problem.window
    doutput, source = in_groups(dy, (1, 1)), in_groups(x, window.stride)
    if not _takes(plan, problem, x) or doutput is None or source is None:
        return False
    sizes = bucket(problem.positions), bucket(problem.outputs), bucket(problem.channels)
    default = hopper_weight_gradient_config(problem, plan.multiprocessors)
    config = plan.choose(default, "hopper", *sizes, *window.kernel, x.dtype)
    if not _ends_with_blocks(problem, config):
        return False
    tiling = _tiling(problem, config)
    per_split = triton.cdiv(tiling.boxes, config.splits)
    config = replace(config, splits=triton.cdiv(tiling.boxes, per_split))  # none without boxes
    row = math.prod(window.kernel) * problem.channels
    direct = config.sums == 1 and lies_in_rows(dweight, row)
    partials = dweight if direct else plan.empty((config.sums, problem.outputs * row), torch.float32)
    images, rows, columns = tiling.images, tiling.rows, tiling.columns
    plan.launch(
        conv2d_hopper_weight_gradient_kernel, (_blocks(problem, config), config.splits), config,
        doutput=doutput.gluon_descriptor((images, rows, 1, columns, config.OUTPUTS)),
        source=source.gluon_descriptor((images, rows, 1, columns, config.CHANNELS)),
        partials_ptr=partials, boxes=(tiling.across, tiling.down), n_boxes=tiling.boxes, boxes_per_split=per_split,
        outputs=problem.outputs, channels=problem.channels, source_column=x.strides[3],
        down=tuple(forward_walk(problem, 0)), across=tuple(forward_walk(problem, 1)),
        BOX_ROWS=rows, BOX_COLUMNS=columns, REGISTERS=config.consumer_registers,
    )  # fmt: skip
    if not direct:
        plan_sum_into(plan, partials, dweight)
    return True


def _takes(plan: Plan, problem: Problem, x: Operand) -> bool:
    sizes = problem.channels, problem.outputs
    return unit_of_rows(plan, x.dtype, sizes, problem.groups) == UNIT and problem.positions > 0
