"""The result of a benchmark: one row per operator, case, dtype, mode and provider, and the provenance."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tilesmith

SCHEMA = 1
OURS = "tilesmith"  # the provider name of the spec's own operator
MODES = ("fwd", "bwd", "both")


class Finished:
    """The result of one unit, as a child process sends it."""


@dataclass
class Row(Finished):
    """One row of a result. Unmeasured fields are None; a row with an `error` has no times to compare."""

    op: str
    case: str
    sizes: dict[str, int]
    dtype: str
    mode: str
    provider: str
    kind: str = "measured"
    file: str | None = None
    device_ms: float | None = None
    device_ms_spread: float | None = None
    noise: float | None = None  # share of device_ms within which two timings count as equal
    samples: int | None = None
    method: str | None = None
    host_us: float | None = None
    wall_ms: float | None = None
    bytes: int | None = None
    flops: int | None = None
    intensity: float | None = None  # flops per byte
    tb_per_s: float | None = None
    tflop_per_s: float | None = None
    percent_of_limit: float | None = None
    floor_ms: float | None = None
    matrix_limit: str | None = None  # the matrix rate behind the floor, such as "bf16"
    matrix_limit_tflop_per_s: float | None = None
    in_cache: bool = False
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    error: str | None = None
    checked: bool | None = None
    auto: str | None = None  # what `auto` chooses: "tilesmith" or "torch"
    config: dict[str, Any] = field(default_factory=dict)
    launches: list[dict[str, Any]] = field(default_factory=list)
    verdict: str | None = None
    notes: list[str] = field(default_factory=list)
    clock_mhz: float | None = None
    power_w: float | None = None
    throttled: list[str] = field(default_factory=list)


def result(
    rows: Sequence[Row], *, about: Mapping[str, Any], limits: Mapping[str, Any] | None, partial: bool
) -> dict[str, Any]:
    """Return the result as data for strict JSON."""
    content: dict[str, Any] = strict(
        {
            "tilesmith": tilesmith.__version__,
            "schema": SCHEMA,
            "device": about.get("device"),
            "driver": about.get("driver"),
            "torch": about.get("torch"),
            "triton": about.get("triton"),
            "commit": commit(Path(tilesmith.__file__).parent),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "partial": partial,
            "throttled": [_throttled(row) for row in rows if row.throttled],
            "limits": dict(limits or {}),
            "rows": [asdict(row) for row in rows],
        }
    )
    return content


def _throttled(row: Row) -> dict[str, str]:
    identity = {name: str(getattr(row, name)) for name in ("op", "case", "dtype", "mode", "provider")}
    return {**identity, "reasons": ", ".join(row.throttled)}


def strict(value: Any) -> Any:
    """Return the value for strict JSON: infinities and NaN become None, other objects their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def commit(directory: Path) -> str | None:
    """Return the commit of the running package, marked `-dirty` where files were changed.

    Outside a checkout return TILESMITH_COMMIT, or None where that is not set.
    """
    own = _git(directory, "ls-files", "--error-unmatch", "__init__.py")  # else a project around us
    return _git(directory, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if own else _copied_commit()


def _copied_commit() -> str | None:
    return os.environ.get("TILESMITH_COMMIT") or None


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
