"""The most this device can do: copy and read bandwidth, matrix rates, and what launching costs.

Measured once per device, driver and PyTorch, and kept with where and when it was measured, unless something else used
the GPU meanwhile. Without a GPU the datasheet
stands in, and says so.
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
MATRIX_SIZES = (4096, 8192)  # the best of both: the larger runs into the power limit on some devices
# Less of what the datasheet promises than this was measured while something else used the GPU: alone, devices reach
# 0.89 of the bandwidth and 0.69 of the matrix rate on an H200.
LEAST_OF_BANDWIDTH, LEAST_OF_RATE = 0.5, 0.4
LEAST_READ_OF_COPY = 0.7
SHORT_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True)
class Limits:
    """Rates in TB/s and TFLOP/s by the name of the dtype, times in µs. `source` says where the figures come from."""

    copy_tb_per_s: float
    read_tb_per_s: float
    matmul_tflop_per_s: Mapping[str, float]
    launch_us: float | None
    launch_host_us: float | None
    cache_bytes: int
    source: str

    @property
    def bandwidth(self) -> float:
        """Bytes per ms. Reading alone may be faster than copying, and some operators mostly read."""
        return max(self.copy_tb_per_s, self.read_tb_per_s) * 1e9

    def rate(self, dtype: torch.dtype) -> Rate:
        """The fastest way to multiply matrices of this dtype, single precision as exactly as PyTorch was told to."""
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


def of_datasheet(device: Device) -> Limits:
    """What the vendor promises, which no kernel reaches. Nothing is said there about launches."""
    bandwidth = device.memory_tb_per_s
    return Limits(bandwidth, bandwidth, device.tflop_per_s, None, None, device.l2_bytes, f"datasheet: {device.source}")


def of_this_gpu(stopwatch: Stopwatch, about: Mapping[str, Any], cache_bytes: int, *, anew: bool) -> Limits:
    """The limits of the current GPU, from the cache unless they are to be measured anew."""
    path = _path(about)
    kept = None if anew else _read(storage.read_json(path))
    if kept is None:
        kept = _measured(stopwatch, about, cache_bytes)
        if is_disturbed(kept, match(str(about["device"]))):
            return replace(kept, source=f"{kept.source}; too slow: something else used the GPU, so not kept")
        storage.update_json(path, lambda _: {"schema": SCHEMA, "limits": asdict(kept), **about})
    return kept


def is_disturbed(limits: Limits, device: Device | None) -> bool:
    """Whether what was measured cannot be all that the device can do. Of an unknown one less can be told."""
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
    except (TypeError, KeyError):  # damaged, or written by another version
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
    """TB/s of copying, which counts bytes read and written, and of reading alone."""
    source = torch.randn(COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    # Not in a graph: there a copy is a node of another kind, which reaches 2.8 TB/s on an H200 where the kernel of an
    # eager copy reaches 4.3. It takes half a millisecond, so what a launch costs disappears in it.
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
    """A kernel that has next to nothing to do."""
    element = torch.zeros(1, device="cuda")
    return _timed(stopwatch, lambda: element.fill_(1.0))


def _matrix_rates(stopwatch: Stopwatch) -> dict[str, float]:
    rates: dict[str, float] = {}
    for size in MATRIX_SIZES:
        for name, product in _products(size).items():
            with suppress(RuntimeError, AttributeError):  # a dtype that this device has no units for
                rate = 2 * size**3 / _timed(stopwatch, product).device_ms / 1e9
                rates[name] = max(rate, rates.get(name, 0.0))
    return rates


def _products(size: int) -> dict[str, Action]:
    """Matrix products on random values: on zeros the clocks would be higher than in earnest."""
    one, other = (torch.randn(size, size, device="cuda") for _ in range(2))
    unit = torch.ones((), device="cuda")

    def single(precision: str) -> Action:
        def product() -> None:
            # Not `allow_tf32`, which can be neither read nor put back where a file has set this newer switch.
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
