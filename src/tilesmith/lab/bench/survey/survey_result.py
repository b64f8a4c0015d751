"""The result of a survey: one outcome per drawn case, and the provenance. The JSON is written while it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tilesmith
from tilesmith import storage
from tilesmith.lab.bench.result import Finished, commit, strict
from tilesmith.lab.bench.survey.drawing import Drawn

SCHEMA = 1
KIND = "survey"
AUTO = "auto"  # the provider name of the operator as users call it by default
SECONDS_BETWEEN_WRITES = 2.0


class SurveyError(Exception):
    """A file is no survey of this version. The message is one line for the user."""


@dataclass
class Direction:
    """The forward or the backward of one case. Times are in ms by provider; a provider without a time has an error."""

    device_ms: dict[str, float] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)  # distance of the quartiles as a share of the time
    errors: dict[str, str] = field(default_factory=dict)
    bytes: int | None = None
    flops: int | None = None
    floor_ms: float | None = None
    copy_ms: float | None = None  # the time of a copy of as many bytes
    auto: str | None = None  # what `auto` chooses: "tilesmith" or "torch"


@dataclass
class Outcome(Finished):
    """One drawn case. `wrong` says why the operator has no time: a wrong result, an exception, a crash."""

    op: str
    number: int
    name: str
    drawn: Drawn
    file: str | None = None
    wrong: str | None = None
    seconds: float | None = None
    directions: dict[str, Direction] = field(default_factory=dict)  # by mode: "fwd", "bwd"


def content(
    outcomes: Sequence[Outcome], *, seed: int, drawn: int, about: Mapping[str, Any], partial: bool
) -> dict[str, Any]:
    """Return a survey as data for strict JSON."""
    made: dict[str, Any] = strict(
        {
            "tilesmith": tilesmith.__version__,
            "schema": SCHEMA,
            "kind": KIND,
            "device": about.get("device"),
            "driver": about.get("driver"),
            "torch": about.get("torch"),
            "triton": about.get("triton"),
            "sms": about.get("sms"),
            "commit": commit(Path(tilesmith.__file__).parent),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "partial": partial,
            "seed": seed,
            "drawn": drawn,
            "limits": dict(about.get("limits") or {}),
            "cases": [asdict(outcome) for outcome in outcomes],
        }
    )
    return made


def read(path: Path) -> dict[str, Any]:
    """Return a stored survey. Raises SurveyError."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SurveyError(f"{path}: {error}") from None
    if not isinstance(stored, dict) or stored.get("kind") != KIND or stored.get("schema") != SCHEMA:
        raise SurveyError(f"{path} is not a survey of this version, as `tilesmith bench OP… --draw N --json` writes it")
    return stored


class Journal:
    """Writes a growing survey to a file, so that a killed run keeps its cases. Without a path it writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next = 0.0

    def write(self, survey: Mapping[str, Any], *, last: bool = False) -> None:
        """Write the survey, but not more often than every two seconds; the last one always. Raises OSError."""
        if self._path is None or (time.monotonic() < self._next and not last):
            return
        storage.write_atomically(self._path, json.dumps(survey, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        self._next = time.monotonic() + SECONDS_BETWEEN_WRITES
