"""Known GPUs: limits of their architecture, and figures of their datasheet.

The figures are in `devices.json`, each with its source. Rates and bandwidth are the vendor's, dense, at boost clock. No
kernel reaches them; `lab/bench` measures what a device reaches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Limits of one multiprocessor (AMD: compute unit), the same on every product of an architecture.

    Registers are 32 bits wide. Each of the `partitions` has its own part of the registers and warps. It allocates
    registers to a warp in multiples of `register_unit`. Every block takes `reserved_shared_bytes` in addition to the
    shared memory that it requests.
    """

    target: str
    name: str
    warp_size: int
    partitions: int
    registers: int
    register_unit: int
    registers_per_thread: int
    warps: int
    warps_per_block: int
    blocks: int
    shared_bytes: int
    shared_unit: int
    reserved_shared_bytes: int
    source: str


@dataclass(frozen=True)
class Device:
    """One product with its datasheet figures.

    `tflop_per_s` maps a dtype to the dense rate of the matrix units. "fp32" is the rate of the vector units. "fp32
    matrix" exists where matrix units multiply single precision faster.
    """

    name: str
    title: str
    reported_as: tuple[str, ...]
    architecture: Architecture
    multiprocessors: int
    memory_tb_per_s: float
    l2_bytes: int
    tflop_per_s: Mapping[str, float]
    source: str


def devices() -> tuple[Device, ...]:
    """Return every known device."""
    return tuple(_devices().values())


def device(name: str) -> Device:
    """Return the device with a short name such as `h200`, in upper or lower case."""
    try:
        return _devices()[name.lower()]
    except KeyError:
        raise ValueError(f"device: unknown device {name!r}; known are {', '.join(_devices())}") from None


def for_target(target: str) -> Architecture:
    """Return the limits of a compile target such as `cuda:90`."""
    try:
        return _architectures()[target]
    except KeyError:
        known = ", ".join(_architectures())
        raise ValueError(f"target: the limits of {target!r} are not known; known are {known}") from None


def match(reported_name: str) -> Device | None:
    """Return the device that PyTorch reports under this name, or None.

    Only full names match: an H100 PCIe, or a MIG slice of an H100, is not an H100 SXM.
    """
    for candidate in devices():
        if reported_name.strip().lower() in (name.lower() for name in candidate.reported_as):
            return candidate
    return None


@cache
def _data() -> dict[str, dict[str, dict[str, Any]]]:
    text = files("tilesmith.hardware").joinpath("devices.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]  # the dataclasses below reject wrong fields


@cache
def _architectures() -> dict[str, Architecture]:
    return {target: Architecture(target=target, **limits) for target, limits in _data()["architectures"].items()}


@cache
def _devices() -> dict[str, Device]:
    return {name: _read_device(name, dict(figures)) for name, figures in _data()["devices"].items()}


def _read_device(name: str, figures: dict[str, Any]) -> Device:
    architecture = for_target(figures.pop("target"))
    reported_as = tuple(figures.pop("reported_as"))
    return Device(name=name, architecture=architecture, reported_as=reported_as, **figures)
