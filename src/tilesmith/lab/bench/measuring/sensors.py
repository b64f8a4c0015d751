"""Read clocks, power and throttle reasons while a benchmark runs, to mark throttled rows."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

IDLE = 0x01
# NVML's bits. Idle clocks and clocks set by an administrator are not throttling.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_ENOUGH_SECONDS = 5
_QUERY = ("clocks.sm", "power.draw", "clocks_throttle_reasons.active")


@dataclass(frozen=True)
class Reading:
    """One reading of the sensors."""

    clock_mhz: float
    power_w: float
    reasons: int


@dataclass(frozen=True)
class Seen:
    """Medians of the readings over a period."""

    clock_mhz: float | None
    power_w: float | None
    throttled: list[str]
    highest_mhz: float | None = None  # of all readings so far, earlier periods included


class Sensors:
    """Collects readings in the parent process, which costs the timed process nothing."""

    def __init__(self, read: Callable[[], Reading | None], seconds_apart: float) -> None:
        self._read = read
        self._seconds_apart = seconds_apart
        self._next = 0.0
        self._readings: list[Reading] = []
        self._highest_mhz: float | None = None

    def sample(self) -> None:
        """Read the sensors if the interval has passed."""
        if time.monotonic() < self._next:
            return
        reading = self._read()
        self._next = time.monotonic() + self._seconds_apart
        if reading is not None:
            self._readings.append(reading)
            self._highest_mhz = max(reading.clock_mhz, self._highest_mhz or 0.0)

    def taken(self) -> Seen:
        """Return what was seen since the last call."""
        # No timed call ran at the clocks of an idle GPU.
        readings, self._readings = [one for one in self._readings if not one.reasons & IDLE], []
        if not readings:
            return Seen(None, None, [])
        throttled = [name for bit, name in REASONS.items() if any(reading.reasons & bit for reading in readings)]
        return Seen(
            median(reading.clock_mhz for reading in readings),
            median(reading.power_w for reading in readings),
            throttled,
            self._highest_mhz,
        )


def first_gpu_sensors() -> Sensors:
    """Return sensors that use NVML if pynvml is installed, else nvidia-smi; without both there are no readings."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # not installed, no driver, no permission: exceptions differ
        return Sensors(_from_nvidia_smi, seconds_apart=1.0)

    def read() -> Reading | None:
        try:
            return Reading(
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            )
        except (nvml.NVMLError, AttributeError):  # not every driver and package supports every query
            return None

    return Sensors(read, seconds_apart=0.1)


def _from_nvidia_smi() -> Reading | None:
    try:
        answer = subprocess.run(
            ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=_ENOUGH_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return parsed(answer.stdout)


def parsed(line: str) -> Reading | None:
    """Parse a line of nvidia-smi: `1980, 412.50, 0x0000000000000004`."""
    try:
        clock, power, reasons = (part.strip() for part in line.strip().split(","))
        return Reading(float(clock), float(power), int(reasons, 16))
    except ValueError:
        return None
