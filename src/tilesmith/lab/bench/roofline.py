"""The floor under a time, how close a measured time comes to it, and what that says about what to do next."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilesmith.lab.bench.limits import Limits
from tilesmith.lab.bench.result import Row
from tilesmith.spec import Case, Spec, Work

ABOVE_THE_LIMIT = 102.0  # per cent; two below are the noise of the limit itself
BOUND = 0.6  # of the time explained by moving bytes, or by flops
NEAR_THE_LIMIT = 0.9
LAUNCHES = 3.0  # times the launch floor


@dataclass(frozen=True)
class Floor:
    """The least times that moving the bytes and doing the flops can take; no kernel is faster than the longer one."""

    memory_ms: float
    compute_ms: float

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.compute_ms)


def floor(work: Work, limits: Limits, dtype: torch.dtype) -> Floor:
    return Floor(work.bytes / limits.bandwidth, work.flops / limits.rate(dtype))


def work_of(spec: Spec, case: Case, dtype: torch.dtype, mode: str) -> Work | None:
    """What the mode must do at least; None where the spec does not say."""
    cost = spec.cost(case, dtype) if spec.cost else None
    if cost is None or mode == "fwd":
        return cost.forward if cost else None
    if cost.backward is None:
        return None
    return cost.backward if mode == "bwd" else cost.forward + cost.backward


def place(row: Row, work: Work, limits: Limits, dtype: torch.dtype) -> None:
    """Fill in what follows from the least work: floor, rates and share of the limit."""
    row.bytes, row.flops = work.bytes, work.flops
    row.intensity = work.flops / work.bytes if work.bytes else None
    row.floor_ms = floor(work, limits, dtype).ms
    row.in_cache = work.bytes <= limits.cache_bytes
    if not row.device_ms:
        return
    row.tb_per_s = work.bytes / row.device_ms / 1e9
    row.tflop_per_s = work.flops / row.device_ms / 1e9
    if row.in_cache:
        row.notes.append("fits in L2: no share of the memory limit is claimed")
        return
    row.percent_of_limit = 100 * row.floor_ms / row.device_ms
    if row.percent_of_limit > ABOVE_THE_LIMIT:
        row.notes.append(
            f"{row.percent_of_limit:.0f} % of the limit is not possible: the spec's cost counts more bytes or flops "
            "than are needed"
        )


def verdict(row: Row, work: Work | None, limits: Limits, dtype: torch.dtype) -> str | None:
    """One line: what holds this row back, by what evidence, and what to try next."""
    if not row.device_ms or row.host_us is None:
        return None
    device_us = row.device_ms * 1e3
    if row.host_us > device_us:
        return (
            f"launch-bound: the host needs {row.host_us:.1f} µs per call, the device {device_us:.1f}. "
            "Capture the calls in a CUDA graph, or do more in each."
        )
    if limits.launch_us is not None and device_us < LAUNCHES * limits.launch_us:
        return (
            f"launch-bound: {device_us:.1f} µs, and launching alone takes {limits.launch_us:.1f}. "
            "Fuse it with its neighbours, or give it a larger batch."
        )
    if work is None:
        return "not placed: the spec gives no cost for this mode. Add `cost` to see how far from the limit it is."
    return _bound(row, work, limits, floor(work, limits, dtype))


def _bound(row: Row, work: Work, limits: Limits, least: Floor) -> str:
    assert row.device_ms, "only a measured row has a verdict"
    memory, compute = least.memory_ms / row.device_ms, least.compute_ms / row.device_ms
    if row.percent_of_limit is not None and row.percent_of_limit > ABOVE_THE_LIMIT:
        return f"error in the count: {row.notes[-1]}."
    if compute >= memory and compute >= BOUND:
        evidence = f"{row.tflop_per_s:.0f} TFLOP/s, {compute:.0%} of the matrix rate"
        if compute >= NEAR_THE_LIMIT:
            return f"compute-bound: {evidence}. It is at the limit: only a narrower dtype or fewer flops help."
        return f"compute-bound: {evidence}. Try larger tiles, more stages, --sweep num_warps=4,8."
    where = "of what HBM gives; it fits in L2" if row.in_cache else "of the memory limit"
    if memory >= BOUND:
        evidence = f"{row.tb_per_s:.2f} TB/s, {memory:.0%} {where}"
        if memory >= NEAR_THE_LIMIT:
            return (
                f"memory-bound: {evidence}. It is at the limit: only fewer bytes help, by fusing or a narrower dtype."
            )
        return f"memory-bound: {evidence}. Look for bytes moved twice or in narrow loads, and --sweep the block sizes."
    return (
        f"latency-bound: neither bytes ({memory:.0%} {where}) nor flops ({compute:.0%} of the matrix rate) explain the "
        "time. More independent work must be in flight: more warps or programs, smaller tiles, fewer steps in a row."
    )
