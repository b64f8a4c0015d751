"""The roofline chart of an inspected kernel. All points are predicted, except a measured time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilesmith.hardware.devices import Device, devices
from tilesmith.lab.inspect.model import Kernel, TargetFacts
from tilesmith.lab.report.content import Axis, Ceiling, Cell, Chart, Charts, Column, Mark, Series, Table
from tilesmith.lab.report.number_format import in_bytes, in_time

_Placed = tuple[str, float, float, bool]  # label, bytes, microseconds, whether measured


def roofline(kernel: Kernel, sector_bytes: int) -> Charts | None:
    """Return the chart of TFLOP/s over flops per byte; None without flops or without a datasheet."""
    facts = next((one for one in kernel.targets.values() if one.predicted_floor_us), None)
    device = next((one for one in devices() if facts is not None and one.title == facts.device), None)
    if facts is None or device is None or not kernel.flops or not kernel.unique_bytes:
        return None
    placed = list(_placed(kernel, facts, device, sector_bytes))
    across = [kernel.flops / moved for _, moved, _, _ in placed]
    heights = [kernel.flops / time / 1e6 for _, _, time, _ in placed]
    rates = _rates(device, facts)
    peak = max(rates.values())
    ridge = peak / device.memory_tb_per_s
    x = _axis("flops per byte", min(*across, ridge) / 4, max(*across, ridge) * 4)
    y = _axis("TFLOP/s", min(*heights, x.low * device.memory_tb_per_s) / 2, peak * 3)
    series = [
        Series(style, [Mark(across[style], heights[style], kernel.name, _figures(kernel, one), open=not one[3])])
        for style, one in enumerate(placed)
    ]
    title = f"Roofline of {device.title}, by its datasheet"
    chart = Chart(title, x, y, list(_ceilings(device.memory_tb_per_s, rates, x)), series, _table(kernel, placed, title))
    return Charts([name for name, *_ in placed], [chart])


def _placed(kernel: Kernel, facts: TargetFacts, device: Device, sector_bytes: int) -> Iterator[_Placed]:
    assert facts.predicted_floor_us is not None
    assert facts.predicted_compute_us is not None
    yield "best case: each byte moves once", kernel.unique_bytes, facts.predicted_floor_us, False
    requested = sector_bytes * sum(line.sectors for line in kernel.lines)
    if requested > kernel.unique_bytes:
        time = max(requested / device.memory_tb_per_s / 1e6, facts.predicted_compute_us)
        yield "worst case: every requested sector comes from memory", requested, time, False
    if kernel.measured_us:
        yield "measured", kernel.unique_bytes, kernel.measured_us, True


def _rates(device: Device, facts: TargetFacts) -> dict[str, float]:
    """Return the well-known rates of the device, and the rates behind the prediction."""
    landmarks = {"fp32": "fp32", "bf16 matrix": "bf16"}
    known = {words: device.tflop_per_s[name] for words, name in landmarks.items() if name in device.tflop_per_s}
    return known | {name: rate for name, rate in facts.predicted_rates.items() if rate not in known.values()}


def _ceilings(bandwidth: float, rates: Mapping[str, float], x: Axis) -> Iterator[Ceiling]:
    end = max(rates.values()) / bandwidth
    middle = math.sqrt(x.low * end)
    slope = [(x.low, x.low * bandwidth), (end, end * bandwidth)]
    yield Ceiling(f"memory {bandwidth:g} TB/s", slope, (middle, middle * bandwidth))
    for name, rate in rates.items():
        yield Ceiling(f"{name} {rate:.4g} TFLOP/s", [(rate / bandwidth, rate), (x.high, rate)], (x.high, rate))


def _axis(label: str, low: float, high: float) -> Axis:
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    step = 1 + len(exponents) // 6
    ticks = [(10.0**exponent, f"{10.0**exponent:,g}") for exponent in exponents if exponent % step == 0]
    return Axis(label, low, high, ticks, logarithmic=True)


def _figures(kernel: Kernel, placed: _Placed) -> list[str]:
    name, moved, time, measured = placed
    return [name, in_bytes(moved), in_time(time) if measured else f"at least {in_time(time)}, predicted"]


def _table(kernel: Kernel, placed: list[_Placed], title: str) -> Table:
    columns = [
        Column(""), Column("bytes", "number"), Column("flops per byte", "number"), Column("time", "number"),
    ]  # fmt: skip
    rows = [
        [Cell(name), Cell(in_bytes(moved)), Cell(f"{kernel.flops / moved:.3g}"), Cell(_figures(kernel, one)[2])]
        for one in placed
        for name, moved, *_ in [one]
    ]
    return Table(title, columns, rows)
