"""Differences between the supported Triton releases, 3.6 to 3.9, that concern the toolchain."""

from __future__ import annotations

import functools

import triton


@functools.cache
def triton_version() -> tuple[int, int]:
    """Return the major and minor number of the installed Triton."""
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def fused_multiply_add_is_exact() -> bool:
    """Whether the stock interpreter rounds `tl.fma` once, as hardware does. Before 3.9 it rounds the product too."""
    return triton_version() >= (3, 9)


def copies_left_operands() -> bool:
    """Return whether Triton keeps a register copy of a wgmma's left operand for each wgmma in flight: since 3.9."""
    return triton_version() >= (3, 9)
