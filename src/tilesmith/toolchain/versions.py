"""Differences between the supported Triton releases, 3.6 to 3.9, that concern the toolchain."""

from __future__ import annotations

import functools
from enum import IntEnum

import triton


@functools.cache
def triton_version() -> tuple[int, int]:
    """Return the major and minor number of the installed Triton."""
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def fused_multiply_add_is_exact() -> bool:
    """Whether the stock interpreter rounds `tl.fma` once, as hardware does. Before 3.9 it rounds the product too."""
    return triton_version() >= (3, 9)


def sums_become_tf32_dots() -> bool:
    """Whether Triton turns `tl.sum(a[:, :, None] * b[None, :, :], 1)` of float32 into a dot of tf32 on NVIDIA GPUs.

    It does before 3.8, for a sum over any of the three dimensions. Since 3.8 the dot is exact, and axis 1 only.
    """
    return triton_version() < (3, 8)


def copies_left_operands() -> bool:
    """Return whether Triton keeps a register copy of a wgmma's left operand for each wgmma in flight: since 3.9."""
    return triton_version() >= (3, 9)


class RegisterUse(IntEnum):
    """How many registers a Triton release needs for the same kernel, compared with the other supported releases."""

    LEAST = 0  # 3.6
    LESS = 1  # 3.7
    MORE = 2  # 3.8
    MOST = 3  # 3.9: a thread adds up its elements as a tree


def register_use() -> RegisterUse:
    """Return the register use of the installed Triton. A tile that fits with one release may spill with the next."""
    minor = triton_version()[1]
    return RegisterUse(min(max(minor - 6, RegisterUse.LEAST), RegisterUse.MOST))
