"""Group the rows of a bench result by case and compare the providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilesmith.lab.bench.result import OURS
from tilesmith.lab.report.number_format import duration, figure

Row = Mapping[str, Any]
Standing = Literal["faster", "equal", "slower"]

MODES = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}
WORTH_TFLOPS = 10.0  # flops per byte from which tables show TFLOP/s
_SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


@dataclass(frozen=True)
class Contest:
    """The rows of all providers for one case, dtype and mode: ours first, then by time."""

    op: str
    case: str
    dtype: str
    mode: str
    rows: Sequence[Row]

    @property
    def size(self) -> str:
        """Case, sizes and dtype, such as "large 16384 × 4096 bf16"."""
        sizes = " × ".join(str(size) for size in (self.rows[0].get("sizes") or {}).values())
        return " ".join(word for word in (self.case, sizes, self.dtype) if word)

    @property
    def name(self) -> str:
        return f"{self.op} {MODES.get(self.mode, self.mode)}, {self.size}"

    @property
    def ours(self) -> Row | None:
        """Our fastest row; a sweep has several."""
        return _fastest(row for row in self.rows if row["provider"] == OURS)

    @property
    def best_rival(self) -> Row | None:
        return _fastest(row for row in self.rows if row["provider"] != OURS)

    @property
    def standing(self) -> Standing | None:
        """Our time compared with the best rival's. None where either has no valid time."""
        if self.ours is None or self.best_rival is None:
            return None
        return compare_times(self.ours, self.best_rival)


def _fastest(rows: Iterable[Row]) -> Row | None:
    return min((row for row in rows if has_valid_time(row)), key=lambda row: float(row["device_ms"]), default=None)


def contests(result: Mapping[str, Any]) -> list[Contest]:
    """Return the contests of a result in the order of measurement."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in result["rows"]:
        if row.get("bytes") == row.get("flops") == 0:
            continue  # nothing to compute, such as the gradient of a sum
        key = (row["op"], row["case"], short_dtype(row.get("dtype")), row.get("mode") or "fwd")
        groups.setdefault(key, []).append(row)
    return [Contest(*key, rows=sorted(rows, key=_place)) for key, rows in groups.items()]


def _place(row: Row) -> tuple[bool, bool, float]:
    return row["provider"] != OURS, not has_valid_time(row), row.get("device_ms") or 0.0


def has_valid_time(row: Row) -> bool:
    """Return whether the row has a measured time of a correct result."""
    return (
        row.get("kind") == "measured"
        and row.get("device_ms") is not None
        and not row.get("error")
        and row.get("checked") is not False
    )


def compare_times(row: Row, other: Row) -> Standing:
    """Compare the times of two rows. A difference within the noise of either counts as equal."""
    difference = row["device_ms"] - other["device_ms"]
    if abs(difference) <= max(_noise_ms(row), _noise_ms(other)):
        return "equal"
    return "faster" if difference < 0 else "slower"


def _noise_ms(row: Row) -> float:
    if row.get("noise") is not None:
        return float(row["noise"] * row["device_ms"])
    return float(row.get("device_ms_spread") or 0.0)


def label(row: Row) -> str:
    """Return the provider's label: an operator from a user's file has its own name."""
    return str(row["op"] if row["provider"] == OURS and row.get("file") else row["provider"])


def labels(rows: Iterable[Row]) -> list[str]:
    """Return the labels of all rows, ours first."""
    return list(dict.fromkeys(label(row) for row in sorted(rows, key=lambda row: row["provider"] != OURS)))


def short_dtype(name: str | None) -> str:
    return _SHORT_DTYPES.get(name or "", name or "")


def single_precision_limits(result: Mapping[str, Any]) -> list[str]:
    """Return the matrix rates that float32 rows are compared with, such as "116 TFLOP/s (six bf16 products)".

    There are several only where files set PyTorch's tf32 switch differently.
    """
    rates = [
        f"{figure(row['matrix_limit_tflop_per_s'], 'TFLOP/s')} ({row['matrix_limit']})"
        for row in result["rows"]
        if row.get("dtype") == "float32"
        and row.get("matrix_limit_tflop_per_s")
        and (row.get("intensity") or 0.0) > WORTH_TFLOPS
    ]
    return list(dict.fromkeys(rates))


def duration_with_spread(row: Row) -> str:
    """Return time and spread in one unit, such as "62.1 ± 0.3 µs"."""
    time, spread = row.get("device_ms"), row.get("device_ms_spread")
    if time is None or spread is None:
        return duration(time)
    value, unit = duration(time).split(" ")
    return f"{value} ± {spread * (1 if unit == 'ms' else 1000):.2g} {unit}"
