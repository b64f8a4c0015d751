"""Compare a result with an older one: which rows became faster or slower beyond the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.lab.bench.result import OURS, SCHEMA

_IDENTITY = ("op", "case", "dtype", "mode", "provider")


class BaselineError(Exception):
    """The two results cannot be compared. The message is one line for the user."""


@dataclass(frozen=True)
class Change:
    """One row of both runs. `ratio` is new time / old time; None where the new run has no time."""

    name: str
    provider: str
    ratio: float | None
    verdict: str  # "faster", "slower", "equal", "lost"
    text: str

    @property
    def is_regression(self) -> bool:
        """Whether our own row became slower. A slower rival is not a regression."""
        return self.provider == OURS and self.verdict in ("slower", "lost")


def changes_since(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the change of every row that the old run measured and the new run tried. Raises BaselineError."""
    if old.get("schema") != SCHEMA or not isinstance(old.get("rows"), list):
        raise BaselineError("the baseline is not a result of this version's `tilesmith bench --json`")
    if old.get("device") != new.get("device"):
        raise BaselineError(f"the baseline was measured on {old.get('device')}, this run on {new.get('device')}")
    tried = {_identity(row): row for row in new["rows"]}
    pairs = [(row, tried.get(_identity(row))) for row in old["rows"] if _has_time(row)]
    return [_change(before, after) for before, after in pairs if after is not None]


def regressions(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.is_regression]


def _identity(row: Mapping[str, Any]) -> tuple[object, ...]:
    sizes, config = (tuple(sorted((row.get(part) or {}).items())) for part in ("sizes", "config"))
    return (*(row.get(part) for part in _IDENTITY), sizes, config)


def _has_time(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == "measured" and not row.get("error") and bool(row.get("device_ms"))


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    name = " ".join(str(before[part]) for part in _IDENTITY)
    if not _has_time(after):
        return Change(name, before["provider"], None, "lost", f"had a time, now {after.get('error') or 'none'}")
    ratio = after["device_ms"] / before["device_ms"]
    noise = _noise(before) + _noise(after)
    verdict = "slower" if ratio > 1 + noise else "faster" if ratio < 1 / (1 + noise) else "equal"
    times = f"{before['device_ms'] * 1e3:.2f} → {after['device_ms'] * 1e3:.2f} µs"
    return Change(name, before["provider"], ratio, verdict, f"{times} ({ratio - 1:+.1%}, noise {noise:.1%})")


def _noise(row: Mapping[str, Any]) -> float:
    return float(row.get("noise") or 0.0)
