"""The limits of a device: copy and read bandwidth, matrix rates, and the time of a launch.

Limits are measured once per device, driver and PyTorch version, and stored with their origin. Limits that another
process disturbed are not stored. Without a GPU the datasheet is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch

import tilesmith
from tilesmith import storage
from tilesmith.hardware.devices import Device, match
from tilesmith.hardware.rates import Rate, single_precision_rate
from tilesmith.lab.bench.measuring.timing import Action, Rotation, Stopwatch, Timing, measure

SCHEMA = 1
COPIED_BYTES = 2 << 30
MATRIX_SIZES = (4096, 8192)  # the best of both: some devices reach their power cap with the larger one
# Below these shares of the datasheet another process used the GPU. An idle H200 reaches 0.89 of the bandwidth and
# 0.69 of the matrix rate.
LEAST_OF_BANDWIDTH, LEAST_OF_RATE = 0.5, 0.4
LEAST_READ_OF_COPY = 0.7
SHORT_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True)
class Limits:
    """Rates in TB/s and TFLOP/s by dtype, times in µs. `source` names the origin of the figures."""

    copy_tb_per_s: float
    read_tb_per_s: float
    matmul_tflop_per_s: Mapping[str, float]
    launch_us: float | None
    launch_host_us: float | None
    cache_bytes: int
    source: str

    @property
    def bandwidth(self) -> float:
        """The larger bandwidth of copying and reading, in bytes per ms."""
        return max(self.copy_tb_per_s, self.read_tb_per_s) * 1e9

    def rate(self, dtype: torch.dtype) -> Rate:
        """Return the fastest matrix rate of this dtype; for float32 at the precision that PyTorch is set to."""
        rates = self.matmul_tflop_per_s
        if dtype == torch.float32:
            shortened = torch.backends.cuda.matmul.fp32_precision == "tf32"
            precisions = ("ieee", "bf16x6", *(("tf32",) if shortened else ()))
            possible = [single_precision_rate(rates, precision) for precision in precisions]
        else:
            named = SHORT_NAMES.get(dtype, "fp32")
            named = named if named in rates else "fp32"
            possible = [Rate(named, rates[named])] if named in rates else []
        ways = [way for way in possible if way is not None]
        return max(ways, key=lambda way: way.tflop_per_s, default=Rate("unknown", math.inf))


def datasheet_limits(device: Device) -> Limits:
    """Return the datasheet's limits, which no kernel reaches. They say nothing about launches."""
    bandwidth = device.memory_tb_per_s
    return Limits(bandwidth, bandwidth, device.tflop_per_s, None, None, device.l2_bytes, f"datasheet: {device.source}")


def gpu_limits(stopwatch: Stopwatch, about: Mapping[str, Any], cache_bytes: int, *, anew: bool) -> Limits:
    """Return the limits of the current GPU: the stored ones, or new ones if `anew`."""
    path = _path(about)
    kept = None if anew else _read(storage.read_json(path))
    if kept is None:
        kept = _measured(stopwatch, about, cache_bytes)
        if is_disturbed(kept, match(str(about["device"]))):
            return replace(kept, source=f"{kept.source}; too slow, so not stored: another process used the GPU")
        storage.update_json(path, lambda _: {"schema": SCHEMA, "limits": asdict(kept), **about})
    return kept


def is_disturbed(limits: Limits, device: Device | None) -> bool:
    """Return whether the limits are too low for the device, as when another process uses the GPU."""
    if limits.read_tb_per_s < LEAST_READ_OF_COPY * limits.copy_tb_per_s:
        return True
    if device is None:
        return False
    rates = ((limits.matmul_tflop_per_s.get(name), device.tflop_per_s.get(name)) for name in ("bf16", "fp16"))
    slow = any(found and promised and found < LEAST_OF_RATE * promised for found, promised in rates)
    return slow or limits.copy_tb_per_s < LEAST_OF_BANDWIDTH * device.memory_tb_per_s


def _path(about: Mapping[str, Any]) -> Path:
    key = " ".join(str(about[part]) for part in ("device", "driver", "torch"))
    return storage.cache_directory() / "limits" / f"{re.sub(r'[^a-z0-9.]+', '-', key.lower()).strip('-')}.json"


def _read(content: Any) -> Limits | None:
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return None
    try:
        return Limits(**content["limits"])
    except (TypeError, KeyError):  # a damaged file, or another version's
        return None


def _measured(stopwatch: Stopwatch, about: Mapping[str, Any], cache_bytes: int) -> Limits:
    copied, read = _bandwidths(stopwatch)
    launch = _launch(stopwatch)
    today = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Limits(
        copy_tb_per_s=copied,
        read_tb_per_s=read,
        matmul_tflop_per_s=_matrix_rates(stopwatch),
        launch_us=launch.device_ms * 1e3,
        launch_host_us=launch.host_us,
        cache_bytes=cache_bytes,
        source=f"measured {today} with PyTorch {about['torch']} by tilesmith {tilesmith.__version__}",
    )


def _bandwidths(stopwatch: Stopwatch) -> tuple[float, float]:
    """Return TB/s of copying (bytes read plus written) and of reading."""
    source = torch.randn(COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    # No graph: a copy node of a graph reaches 2.8 TB/s on an H200, an eager copy kernel 4.3. One copy takes half a
    # millisecond, so the launch is negligible.
    stopwatch.milliseconds(lambda: target.copy_(source), 20, _nothing)
    copied_ms = median(stopwatch.milliseconds(lambda: target.copy_(source), 40, _nothing))
    read_ms = _timed(stopwatch, lambda: source.sum()).device_ms
    return 2 * COPIED_BYTES / copied_ms / 1e9, COPIED_BYTES / read_ms / 1e9


def _nothing() -> None:
    return None


def _timed(stopwatch: Stopwatch, action: Action) -> Timing:
    def call() -> tuple[()]:
        action()
        return ()

    return measure(stopwatch, [call], Rotation(1)).timing


def _launch(stopwatch: Stopwatch) -> Timing:
    """Time a kernel with almost no work."""
    element = torch.zeros(1, device="cuda")
    return _timed(stopwatch, lambda: element.fill_(1.0))


def _matrix_rates(stopwatch: Stopwatch) -> dict[str, float]:
    rates: dict[str, float] = {}
    for size in MATRIX_SIZES:
        for name, product in _products(size).items():
            with suppress(RuntimeError, AttributeError):  # the device does not support the dtype
                rate = 2 * size**3 / _timed(stopwatch, product).device_ms / 1e9
                rates[name] = max(rate, rates.get(name, 0.0))
    return rates


def _products(size: int) -> dict[str, Action]:
    """Return matrix products on random values by name: zeros would give higher clocks."""
    one, other = (torch.randn(size, size, device="cuda") for _ in range(2))
    unit = torch.ones((), device="cuda")

    def single(precision: str) -> Action:
        def product() -> None:
            # Not `allow_tf32`: reading it fails where a file has set this newer switch.
            switch = torch.backends.cuda.matmul
            before = switch.fp32_precision
            switch.fp32_precision = precision
            try:
                one @ other
            finally:
                switch.fp32_precision = before

        return product

    def half(dtype: torch.dtype) -> Action:
        left, right = one.to(dtype), other.to(dtype)
        return lambda: left @ right

    def eighth() -> None:
        torch._scaled_mm(left8, right8, unit, unit, out_dtype=torch.bfloat16)

    left8 = one.to(torch.float8_e4m3fn)
    right8 = other.to(torch.float8_e4m3fn).t()
    return {
        "bf16": half(torch.bfloat16),
        "fp16": half(torch.float16),
        "tf32": single("tf32"),
        "fp32": single("ieee"),
        "fp8": eighth,
    }
