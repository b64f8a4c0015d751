"""The verdict on a row: what bounds it, the evidence, and what to try next."""

from __future__ import annotations

import torch

from tilesmith.hardware.rates import Rate, single_precision_rate
from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.device_limits import Limits
from tilesmith.lab.bench.roofline.floor import ABOVE_THE_LIMIT, Floor, floor, is_miscounted
from tilesmith.spec import Work

BOUND = 0.6  # share of the time that bytes or flops must explain
NEAR_THE_LIMIT = 0.9
FULL_CLOCK = 0.95  # of the highest clock; above it the power cap hardly matters
LAUNCHES = 3.0  # launch-bound below this multiple of the launch time


def verdict(row: Row, work: Work | None, limits: Limits, dtype: torch.dtype) -> str | None:
    """Return one line: what bounds the row, the evidence, and what to try next."""
    if not row.device_ms or row.host_us is None:
        return None
    device_us = row.device_ms * 1e3
    if row.host_us > device_us:
        return (
            f"launch-bound: the host needs {row.host_us:.1f} µs per call, the device {device_us:.1f} µs. "
            "Capture the calls in a CUDA graph, or fuse them."
        )
    if limits.launch_us is not None and device_us < LAUNCHES * limits.launch_us:
        return (
            f"launch-bound: {device_us:.1f} µs, of which the launch takes {limits.launch_us:.1f} µs. "
            "Fuse it with its neighbours, or use a larger batch."
        )
    if work is None:
        return "no verdict: the spec gives no cost for this mode. Add `cost` to see the distance from the limit."
    return _bound(row, limits, limits.rate(dtype), floor(work, limits, dtype))


def _bound(row: Row, limits: Limits, rate: Rate, least: Floor) -> str:
    assert row.device_ms, "only measured rows have a verdict"
    memory, compute = least.memory_ms / row.device_ms, least.compute_ms / row.device_ms
    if is_miscounted(row, least):
        return f"wrong cost: {row.notes[-1]}."
    if compute >= memory and compute >= BOUND:
        evidence = f"{row.tflop_per_s:.0f} TFLOP/s, {compute:.0%} of the matrix rate"
        if compute > ABOVE_THE_LIMIT / 100:
            return f"compute-bound: {evidence}, the rate of PyTorch's own GEMM. Only fewer flops help."
        if compute >= NEAR_THE_LIMIT:
            return f"compute-bound: {evidence}. This is the limit: only a narrower dtype or fewer flops help."
        return f"compute-bound: {evidence}. Try larger tiles, more stages, --sweep num_warps=4,8."
    where = "of the HBM bandwidth; the data fit in L2" if row.in_cache else "of the memory limit"
    if memory >= BOUND:
        evidence = f"{row.tb_per_s:.2f} TB/s, {memory:.0%} {where}"
        if memory >= NEAR_THE_LIMIT:
            return f"memory-bound: {evidence}. This is the limit: only fewer bytes help, by fusion or a narrower dtype."
        return f"memory-bound: {evidence}. Look for repeated or narrow loads, and --sweep the block sizes."
    if rate == single_precision_rate(limits.matmul_tflop_per_s, "bf16x6"):
        ordinary = _by_ordinary_units(row, limits.matmul_tflop_per_s.get("fp32"), rate)
        if ordinary:
            return ordinary
    return (
        f"latency-bound: neither bytes ({memory:.0%} {where}) nor flops ({compute:.0%} of the matrix rate) explain the "
        "time. Put more independent work in flight: more warps or programs, smaller tiles, fewer dependent steps."
    )


def _by_ordinary_units(row: Row, most: float | None, rate: Rate) -> str | None:
    """Return the verdict on exact products that run at the rate of the fp32 units; None at other rates."""
    share = row.tflop_per_s / most if row.tflop_per_s and most else 0.0
    if not BOUND <= share <= ABOVE_THE_LIMIT / 100:
        return None
    return (
        f"compute-bound if it does not use tensor cores: {row.tflop_per_s:.0f} TFLOP/s, {share:.0%} of the fp32 "
        f"rate. Tensor cores reach {rate.tflop_per_s:.0f} TFLOP/s with the same accuracy by {rate.name}: "
        'input_precision="bf16x6" in tl.dot.'
    )


def power_cap(row: Row, highest_mhz: float | None) -> str | None:
    """Return a sentence to add where the power cap lowered the clock; None elsewhere."""
    computes = (row.verdict or "").startswith(("compute-bound", "latency-bound"))
    if not computes or "power cap" not in row.throttled:
        return None
    if not (row.clock_mhz and highest_mhz and row.floor_ms and row.device_ms):
        return None
    if row.floor_ms / row.device_ms >= NEAR_THE_LIMIT or row.clock_mhz >= FULL_CLOCK * highest_mhz:
        return None
    return (
        f"But the power cap held the clock at {row.clock_mhz:.0f} of {highest_mhz:.0f} MHz, which is probably the "
        "main limit: fewer flops and bytes help, more work in flight does not."
    )
