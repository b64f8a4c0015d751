"""What the compiler and the memory trace say about each kernel of a tape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilesmith.lab.inspect.model import Kernel, TargetFacts
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.session import Session
from tilesmith.lab.judge.replaying.replay import Replay
from tilesmith.toolchain.compiler import CompileError, Target, accepted_options, require_compilable
from tilesmith.toolchain.launcher import scratch_memory

SECONDS_TO_TRACE = 1.0
MOST_FINDINGS = 6


def facts_of(replay: Replay, steps: Sequence[dict[str, Any]], targets: Sequence[str]) -> list[dict[str, Any]]:
    """Trace and compile every launch of a tape. The launches need not compute anything."""
    options = InspectOptions(targets=tuple(Target.parse(one) for one in targets), seconds=SECONDS_TO_TRACE)
    session = Session(options, has_gpu=False)
    with scratch_memory():  # the judge launches with an allocator, whether the candidate sets one or not
        for step in steps:
            if "kernel" in step:
                session.launch(replay.launched(step))
                session.run_deferred()
    return [
        _kernel(kernel, session.launches[number], session.sector_bytes) for number, kernel in enumerate(session.kernels)
    ]


def translation_error(
    replay: Replay, steps: Sequence[dict[str, Any]], target: str, known: set[str]
) -> dict[str, Any] | None:
    """Return the first error of the compiler's front end for the launches of a tape, and its kernel."""
    for step in steps:
        if "kernel" in step:
            launched = replay.launched(step)
            options = accepted_options(Target.parse(target), launched.options)
            try:
                require_compilable(launched.kernel, Target.parse(target), launched.arguments, known, **options)
            except CompileError as error:
                return {"name": launched.kernel.__name__, "error": str(error), "line": error.line}
    return None


def _kernel(kernel: Kernel, launches: int, sector_bytes: int) -> dict[str, Any]:
    sectors = [one for one in kernel.accesses if one.requests is not None and one.sectors_per_request is not None]
    moved = sum((one.requests or 0) * (one.sectors_per_request or 0.0) for one in sectors)
    ideal = sum((one.requests or 0) * (one.ideal_sectors_per_request or 0.0) for one in sectors)
    return {
        "name": kernel.name,
        "line": kernel.line,
        "launches": launches,
        "grid": list(kernel.grid),
        "bytes": kernel.bytes,
        "unique_bytes": kernel.unique_bytes,
        "flops": kernel.flops,
        "bound": kernel.bound,
        "sector_bytes": sector_bytes,
        "sectors": round(moved) if sectors else None,
        "ideal_sectors": round(ideal) if sectors else None,
        "targets": {name: _target(facts) for name, facts in kernel.targets.items()},
        "errors": {name: facts.error for name, facts in kernel.targets.items() if facts.error},
        "findings": [
            {"kind": one.kind, "severity": one.severity, "message": one.message, "advice": one.advice,
             "file": Path(one.file).name, "line": one.line}
            for one in kernel.findings[:MOST_FINDINGS]
        ],
    }  # fmt: skip


def _target(facts: TargetFacts) -> dict[str, Any]:
    return {
        "device": facts.device,
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "shared_bytes": facts.shared_bytes,
        "occupancy": facts.occupancy,
        "predicted_us": facts.predicted_floor_us,
        "limited_by": facts.limited_by,
    }
