"""How long PTX instructions take on a Hopper multiprocessor (cuda:90), in clock cycles.

Rates are those of the CUDA C++ Programming Guide for compute capability 9.0: lanes per clock and multiprocessor. A
multiprocessor has four partitions; each issues one instruction of a warp per clock. Latencies of memory are from
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024). mma.sync reaches 62 % of
the rate of wgmma there. Integer arithmetic runs on two pipes of 64 lanes, between which ptxas divides it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

L2_LATENCY = 263
MEMORY_LATENCY = 479
ATOMIC_LATENCY = 1.5  # times that of a load
L2_BYTES_PER_CLOCK = 5120  # of the whole chip; A100 white paper
SECTORS_PER_CLOCK = 4  # that an L1 cache delivers
MEMORY_SHARE = 0.9  # of the datasheet rate: a copy reaches 4.3 of 4.8 TB/s on an H200
LAUNCH_US = 2.0  # the shortest kernel

_FLOPS_PER_CLOCK = {"mma": 0.62 * 1024, "wgmma": 1024}  # of a partition, 16-bit operands
_SPECIAL = frozenset({"ex2", "lg2", "rcp", "rsqrt", "sin", "cos", "tanh", "sqrt"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "fma", "mad", "min", "max", "neg", "abs"})
_FLOATS = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
_WIDE = frozenset({"s64", "u64", "b64"})
_FREE = frozenset({"mov", "bra", "ret", "pragma"})


class Cost(NamedTuple):
    """`cycles` occupy the pipe of one partition for one warp; the result is there after `latency`."""

    pipe: str
    cycles: float
    latency: float


@cache
def cost_of(name: str) -> Cost:
    """Return the cost of an instruction from its full name, such as `ld.shared.v4.b32`."""
    base, *parts = name.split(".")
    if base in _FREE:
        return Cost("", 0, 0)
    if base in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix", "cp"):
        return _of_memory(base, parts)
    if base in ("mma", "wgmma"):
        return _of_tensor_cores(base, name)
    if base in ("bar", "barrier"):
        return Cost("", 1, 30)
    if base == "shfl":
        return Cost("shared memory", 4, 23)
    if base in _SPECIAL and "rn" not in parts:
        return Cost("special functions", 8, 20)
    if base == "cvt":
        return Cost("special functions", 2, 6)
    if base in ("div", "rem", *_SPECIAL):
        return _of_quotient(parts)
    if base in _ARITHMETIC and "f64" in parts:
        return Cost("fp64", 2, 8)
    if base in _ARITHMETIC and not _FLOATS.isdisjoint(parts):
        return Cost("fp32", 1, 4)
    return Cost("integers", 2, 8) if not _WIDE.isdisjoint(parts) else Cost("integers", 1, 4)


def _of_memory(base: str, parts: list[str]) -> Cost:
    if "param" in parts:
        return Cost("integers", 1, 8)
    if "global" in parts or base in ("cp", "atom", "red"):
        return Cost("shared memory", 4, L2_LATENCY)
    if base.endswith("matrix"):
        return Cost("shared memory", 4 * int(next((one[1:] for one in parts if one in ("x1", "x2", "x4")), "1")), 30)
    vector = 4 if "v4" in parts else 2 if "v2" in parts else 1
    bits = max((int(one[1:]) for one in parts if re.fullmatch(r"[bfus]\d+", one)), default=32)
    return Cost("shared memory", 4 * max(1, vector * bits // 32), 30)  # 128 bytes per clock


def _of_tensor_cores(base: str, name: str) -> Cost:
    shape = re.search(r"m(\d+)n(\d+)k(\d+)", name)
    if shape is None:  # fences and waits
        return Cost("", 1, 4)
    m, n, k = map(int, shape.groups())
    faster = 0.5 if "tf32" in name else 2 if re.search(r"e4m3|e5m2|s8|u8", name) else 1
    partitions = 4 if base == "wgmma" else 1
    cycles = 2 * m * n * k / (partitions * faster * _FLOPS_PER_CLOCK[base])
    return Cost("tensor cores", cycles, cycles if base == "wgmma" else 33)


def _of_quotient(parts: list[str]) -> Cost:
    """Return the cost of a division or an exact root, which ptxas expands."""
    if "full" in parts:
        return Cost("special functions", 10, 40)
    if not _FLOATS.isdisjoint(parts):
        return Cost("fp32", 12, 60)
    return Cost("integers", 140, 280) if not _WIDE.isdisjoint(parts) else Cost("integers", 50, 120)
