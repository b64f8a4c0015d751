"""The floor under a time, and how close a measured time comes to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.device_limits import Limits
from tilesmith.spec import Case, Spec, Work

ABOVE_THE_LIMIT = 102.0  # per cent; the limit itself has 2 % noise
ABOVE_ANY_PRODUCT = 125.0
"""Per cent of the matrix rate that PyTorch's GEMM reached. A better kernel may exceed it, but not by this much."""


@dataclass(frozen=True)
class Floor:
    """The least times for moving the bytes and for the flops. No kernel is faster than the longer one."""

    memory_ms: float
    compute_ms: float

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.compute_ms)


def floor(work: Work, limits: Limits, dtype: torch.dtype) -> Floor:
    return Floor(work.bytes / limits.bandwidth, work.flops / limits.rate(dtype).flops_per_ms)


def work_of(spec: Spec, case: Case, dtype: torch.dtype, mode: str) -> Work | None:
    """Return the least work of a mode; None where the spec gives none."""
    cost = spec.cost(case, dtype) if spec.cost else None
    if cost is None or mode == "fwd":
        return cost.forward if cost else None
    if cost.backward is None:
        return None
    return cost.backward if mode == "bwd" else cost.forward + cost.backward


def place_on_roofline(row: Row, work: Work, limits: Limits, dtype: torch.dtype) -> None:
    """Fill in the floor, the rates and the share of the limit."""
    row.bytes, row.flops = work.bytes, work.flops
    row.intensity = work.flops / work.bytes if work.bytes else None
    least = floor(work, limits, dtype)
    row.floor_ms = least.ms
    rate = limits.rate(dtype)
    row.matrix_limit, row.matrix_limit_tflop_per_s = rate.name, rate.tflop_per_s
    row.in_cache = work.bytes <= limits.cache_bytes
    if not row.device_ms:
        return
    row.tb_per_s = work.bytes / row.device_ms / 1e9
    row.tflop_per_s = work.flops / row.device_ms / 1e9
    if row.in_cache:
        row.notes.append("fits in L2: no share of the memory limit")
        return
    row.percent_of_limit = 100 * row.floor_ms / row.device_ms
    if is_miscounted(row, least):
        row.notes.append(
            f"{row.percent_of_limit:.0f} % of the limit is impossible: the spec's cost counts too many bytes or flops"
        )


def is_miscounted(row: Row, least: Floor) -> bool:
    """Return whether the row is faster than possible."""
    most = ABOVE_ANY_PRODUCT if least.compute_ms > least.memory_ms else ABOVE_THE_LIMIT
    return row.percent_of_limit is not None and row.percent_of_limit > most
