"""The launch of `gather.py`: which problems it takes, and with which tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton

from tilesmith.ops.conv2d.hopper.boxes import UNIT, half_box, in_groups, unit_of_rows
from tilesmith.ops.conv2d.hopper.gather import conv2d_hopper_gather_kernel
from tilesmith.ops.conv2d.problem import Gather, Tiling, plan_copy_of, plan_from_channels_last, tiling_of
from tilesmith.ops.device.hopper import ProducerConfig
from tilesmith.ops.device.step_times import step_clocks, store_clocks
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class HopperGatherConfig(ProducerConfig):
    """Tiles of POSITIONS × COLUMNS outputs, DEPTH channels at a time, and a ring of STAGES such steps."""

    POSITIONS: int = 128
    COLUMNS: int = 128
    DEPTH: int = 64
    STAGES: int = 5


TILES = tuple(
    HopperGatherConfig(POSITIONS=positions, COLUMNS=columns, DEPTH=depth, STAGES=stages)
    for positions, columns, depth, stages in (
        (128, 256, 64, 3), (128, 128, 64, 5), (128, 64, 64, 6), (256, 128, 64, 3), (256, 64, 64, 4),
        (128, 128, 32, 6), (128, 64, 32, 8),
    )
)  # fmt: skip
"""None spills, and shared memory holds each. Two programs of 128 × 64 on a multiprocessor gain 3 % at best."""


def hopper_gather_config(gather: Gather, plan: Plan) -> HopperGatherConfig:
    """Return the tiles with the shortest predicted time, of those that a stride allows if there are any."""
    allowed = [tiles for tiles in TILES if _ends_with_blocks(gather, tiles)]
    return min(allowed or TILES, key=lambda tiles: _clocks(gather, tiles, plan.multiprocessors))


def _clocks(gather: Gather, config: HopperGatherConfig, multiprocessors: int) -> float:
    rounds = triton.cdiv(_tiling(gather, config).boxes * _column_tiles(gather, config), multiprocessors)
    steps = triton.cdiv(gather.channels, config.DEPTH) * gather.down.taps * gather.across.taps
    narrow = config.POSITIONS if gather.channels % (2 * UNIT) else 0
    step = step_clocks(config.POSITIONS, config.COLUMNS, config.DEPTH, config.STAGES, narrow)
    return float(rounds * (steps * step + store_clocks(2 * config.POSITIONS * config.COLUMNS)))


def _tiling(gather: Gather, config: HopperGatherConfig) -> Tiling:
    batch, _, height, width = gather.result.shape
    return tiling_of(config.POSITIONS, batch, height, width)


def _column_tiles(gather: Gather, config: HopperGatherConfig) -> int:
    tiles: int = triton.cdiv(gather.outputs, config.COLUMNS)
    return tiles


def plan_hopper_gather(plan: Plan, gathers: Sequence[Gather]) -> bool:
    """Plan the launches that compute one result together; return whether this kernel computes the problem.

    A result that TMA cannot store is computed with channels last and copied.
    """
    first = gathers[0]
    images = first.whole_result or first.result
    source, weight = in_groups(first.source, (first.down.step, first.across.step)), weight_by_taps(first.weight)
    is_whole = images.shape[2] % first.result_steps[0] == images.shape[3] % first.result_steps[1] == 0
    if source is None or weight is None or not is_whole or not all(_takes(plan, gather) for gather in gathers):
        return False
    configs = [_config(plan, gather) for gather in gathers]
    if not all(_ends_with_blocks(gather, config) for gather, config in zip(gathers, configs, strict=True)):
        return False
    stored = images if in_groups(images, first.result_steps) else plan_copy_of(plan, images, UNIT)
    for gather, config in zip(gathers, configs, strict=True):
        _plan_launch(plan, gather, config, source, weight, stored)
    if stored is not images:
        plan_from_channels_last(plan, stored, images)
    return True


def _config(plan: Plan, gather: Gather) -> HopperGatherConfig:
    batch, _, height, width = gather.result.shape
    sizes = bucket(batch * height * width), bucket(gather.outputs), bucket(gather.channels)
    taps = gather.down.taps * gather.across.taps
    return plan.choose(hopper_gather_config(gather, plan), "hopper", *sizes, taps, gather.source.dtype)


def _plan_launch(
    plan: Plan, gather: Gather, config: HopperGatherConfig, source: Operand, weight: Operand, stored: Operand
) -> None:
    result = in_groups(stored, gather.result_steps)
    assert result is not None, "TMA can store a copy in whole units"
    tiling = _tiling(gather, config)
    images, rows, columns = tiling.images, tiling.rows, tiling.columns
    column_tiles = _column_tiles(gather, config)
    n_tiles = tiling.boxes * column_tiles
    along = gather.weight_strides[1] == 1
    weight_block = (config.COLUMNS, 1, config.DEPTH) if along else (config.DEPTH, 1, config.COLUMNS)
    half_images, half_rows, half_columns = half_box(images, rows, columns)
    plan.launch(
        conv2d_hopper_gather_kernel, (min(n_tiles, config.resident * plan.multiprocessors),), config,
        source=source.gluon_descriptor((images, rows, 1, columns, config.DEPTH)),
        weight=weight.gluon_descriptor(weight_block),
        result=result.gluon_descriptor((half_images, half_rows, 1, half_columns, config.COLUMNS)),
        bias_ptr=gather.bias, n_tiles=n_tiles, boxes=(tiling.across, tiling.down),
        column_tiles=column_tiles, outputs=gather.outputs, channels=gather.channels, down=tuple(gather.down),
        across=tuple(gather.across), taps_in_row=gather.weight.shape[3], source_column=gather.source.strides[3],
        result_group=(gather.result_place[0], gather.result_place[1] * stored.strides[3]),
        BOX_ROWS=rows, BOX_COLUMNS=columns, ALONG=along, REGISTERS=config.consumer_registers,
    )  # fmt: skip


def _takes(plan: Plan, gather: Gather) -> bool:
    sizes = gather.channels, gather.outputs
    return (
        unit_of_rows(plan, gather.source.dtype, sizes, gather.groups) == UNIT
        and (gather.bias is None or gather.bias.strides[0] == 1)
        and 0 not in gather.result.shape
    )


def _ends_with_blocks(gather: Gather, config: HopperGatherConfig) -> bool:
    """Return whether blocks of channels end with them where the next column of a group follows."""
    reads = gather.across.step == 1 or gather.channels % config.DEPTH == 0
    return reads and (gather.result_steps[1] == 1 or gather.outputs % config.COLUMNS == 0)


def weight_by_taps(weight: Operand) -> Operand | None:
    """Return a weight [K, C, R, S] with channels last as [K, R · S, C], or None where TMA cannot load it."""
    (outputs, channels, taps_down, taps_across), (of_output, of_channel, of_row, of_tap) = weight.shape, weight.strides
    if of_channel != 1 or (taps_down > 1 and of_row != taps_across * of_tap):
        return None
    by_taps = weight.seen_as((outputs, taps_down * taps_across, channels), (of_output, of_tap, 1))
    return by_taps if by_taps.describable() else None
