"""Occupancy: how many warps of a kernel fit on a multiprocessor, and which limit is reached first."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.hardware.devices import Architecture


@dataclass(frozen=True)
class Occupancy:
    """`blocks` of the kernel fit on one multiprocessor; `occupancy` is the fraction of its warps that they fill.

    `limited_by` is "registers", "shared memory", "warps" or "blocks". A kernel with `blocks` 0 cannot be launched.
    """

    occupancy: float
    blocks: int
    limited_by: str


def occupancy(architecture: Architecture, *, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel with `num_warps` and `shared_bytes` a block and `registers` a thread.

    AMD's scalar registers are ignored: they cost at most one wave in eight, and only above a hundred.
    """
    _check_at_least("num_warps", num_warps, least=1)
    _check_at_least("registers", registers, least=1)
    _check_at_least("shared_bytes", shared_bytes, least=0)
    # The first of equal limits is named, so warps come before registers: fewer registers would not help there.
    limits = {
        "warps": _blocks_by_warps(architecture, num_warps),
        "blocks": architecture.blocks,
        "registers": _blocks_by_registers(architecture, num_warps, registers),
        "shared memory": _blocks_by_shared_memory(architecture, shared_bytes),
    }
    limited_by = min(limits, key=lambda limit: limits[limit])
    blocks = limits[limited_by]
    return Occupancy(blocks * num_warps / architecture.warps, blocks, limited_by)


def _check_at_least(argument: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{argument}: is {value}, must be at least {least}")


def _blocks_by_warps(architecture: Architecture, num_warps: int) -> int:
    return architecture.warps // num_warps if num_warps <= architecture.warps_per_block else 0


def _blocks_by_registers(architecture: Architecture, num_warps: int, registers: int) -> int:
    if registers > architecture.registers_per_thread:
        return 0
    registers_per_warp = _round_up(registers * architecture.warp_size, architecture.register_unit)
    warps_per_partition = architecture.registers // architecture.partitions // registers_per_warp
    return warps_per_partition * architecture.partitions // num_warps


def _blocks_by_shared_memory(architecture: Architecture, shared_bytes: int) -> int:
    per_block = _round_up(shared_bytes + architecture.reserved_shared_bytes, architecture.shared_unit)
    return architecture.shared_bytes // per_block if per_block else architecture.blocks


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
