"""How many warps of a kernel a multiprocessor holds at once, and what stops it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.hardware.devices import Architecture


@dataclass(frozen=True)
class Occupancy:
    """`blocks` of the kernel fit on one multiprocessor; `occupancy` is the share of its warps that they fill.

    `limited_by` is "registers", "shared memory", "warps" or "blocks". No block fits where `blocks` is 0: such a kernel
    cannot be launched.
    """

    occupancy: float
    blocks: int
    limited_by: str


def occupancy(architecture: Architecture, *, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of a kernel with `num_warps` warps and `shared_bytes` per block, `registers` per thread.

    AMD's scalar registers are left out: they cost at most one wave in eight, and only beyond a hundred.
    """
    _check_at_least("num_warps", num_warps, least=1)
    _check_at_least("registers", registers, least=1)
    _check_at_least("shared_bytes", shared_bytes, least=0)
    # In this order, because the first of equals is named: fewer registers do not help where warps are used up as well.
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
