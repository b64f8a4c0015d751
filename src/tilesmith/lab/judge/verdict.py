"""The verdict: what the judge found, as plain data. `ts.lab.schema("judge")` describes the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import isfinite
from typing import Any, Literal

from tilesmith.lab import schemas
from tilesmith.lab.judge.candidate import readable

Outcome = Literal["pass", "fail", "unproven"]
STAGES = ("loads", "runs", "honest", "right", "safe", "compiles", "fast")
SCHEMA = "tilesmith-verdict-1"


@dataclass(frozen=True)
class Reason:
    """Why a candidate failed, or what stays open. `draw` names the inputs: the candidate never sees "fresh" ones."""

    kind: str
    stage: str
    message: str
    advice: str = ""
    case: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    layout: str | None = None
    draw: str | None = None
    output: str | None = None
    element: tuple[int, ...] | None = None
    expected: float | None = None
    found: float | None = None
    kernel: str | None = None
    program: tuple[int, ...] | None = None
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        """Make what may come from a candidate fit for terminals and files."""
        for name in ("message", "advice", "output", "kernel", "file"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, readable(str(value)))

    def __str__(self) -> str:
        place = ", ".join(one for one in (self.case, self.dtype, self.layout) if one)
        line = f" ({self.file}:{self.line})" if self.file and self.line else ""
        return f"{place + ': ' if place else ''}{self.message}{line}"


@dataclass(frozen=True)
class Reward:
    """A number in [0, 1] for training, and the parts that it is the sum of."""

    value: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one candidate.

    `unproven` means that nothing wrong was found, but something could not be judged here, such as a kernel with an
    operation that the interpreter lacks. `stage` is the stage that failed, or the last one that passed.
    """

    task: str
    candidate: str
    digest: str
    outcome: Outcome
    stage: str
    reasons: tuple[Reason, ...]
    stages: Mapping[str, str]  # "passed", "failed", "open" or "skipped"
    trials: int
    trials_right: int
    kernels: Sequence[Mapping[str, Any]]
    bytes: int | None  # moved by all launches of one call of the case in `facts_case`
    floor_bytes: int | None
    facts_case: str | None
    times: Mapping[str, Any] | None
    reward: Reward
    seed: int
    seconds: float
    protections: tuple[str, ...]
    missing_protections: tuple[str, ...]
    printed: str = ""
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"

    @property
    def reason(self) -> Reason | None:
        """The first reason, which decided the outcome."""
        return self.reasons[0] if self.reasons else None

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as strict JSON: infinities and NaN become null."""
        return {"schema": SCHEMA, **_strict(asdict(self))}

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _strict(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return value


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of a verdict."""
    return schemas.schema("judge")


# Weights of the reward. The first parts lead a beginner to a running kernel; more than half is for right and fast.
_RUNS, _LAUNCHES, _RIGHT, _SAFE, _COMPILES, _SPEED = 0.05, 0.10, 0.30, 0.10, 0.10, 0.35


def speed_of(times: Mapping[str, Any] | None, byte_share: float) -> float:
    """Return how fast a candidate is, in [0, 1].

    With times: the share of the GPU's limit; for a task without a cost s / (1 + s), s being the speed-up over the
    definition. Without times: least bytes over moved bytes. Work of the host that no clock holds earns nothing.
    """
    if times is None:
        return byte_share
    if times["host_reads"]:
        return 0.0
    if times["share_of_limit"] is not None:
        return float(times["share_of_limit"])
    speedup = times["speedup"] or 0.0
    return float(speedup / (1 + speedup))


def reward(stages: Mapping[str, str], right: float, speed: float) -> Reward:
    """Return the reward: `right` is the share of trials that were right, `speed` how fast the candidate is.

    A dishonest candidate gets nothing. Speed counts only for a candidate that passes everything else.
    """
    if stages.get("honest") == "failed":
        return Reward(0.0, dict.fromkeys(("runs", "launches", "right", "safe", "compiles", "speed"), 0.0))
    passed = {stage: stages.get(stage) == "passed" for stage in STAGES}
    all_right = all(passed[stage] for stage in ("runs", "honest", "right", "safe", "compiles"))
    parts = {
        "runs": _RUNS * passed["runs"],
        "launches": _LAUNCHES * passed["honest"],
        "right": _RIGHT * (right if passed["honest"] else 0.0),
        "safe": _SAFE * (passed["safe"] and passed["right"]),
        "compiles": _COMPILES * passed["compiles"],
        "speed": _SPEED * (max(0.0, min(1.0, speed)) if all_right else 0.0),
    }
    return Reward(round(sum(parts.values()), 6), {name: round(part, 6) for name, part in parts.items()})
