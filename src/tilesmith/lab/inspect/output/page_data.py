"""The data that the script of the inspect page draws, and the rating that colours each access."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tilesmith.lab.inspect.findings.evidence import BANK_CONFLICT, FEW_WAVEFRONTS, REDUNDANT, UNCOALESCED
from tilesmith.lab.inspect.model import AccessFacts, Inspection, Kernel, ProgramFacts, SharedAccess, TargetFacts

MOST_STEP_BYTES = 1_500_000  # of all programs on a page
LONGEST_CODE = 400  # of a statement, in characters


@dataclass(frozen=True)
class Rating:
    """The meaning of a colour."""

    word: str
    meaning: str


RATINGS = {
    "coalesced": Rating("Coalesced", "a request of a warp takes about the ideal number of sectors"),
    "uncoalesced": Rating("Not coalesced", f"less than {UNCOALESCED:.0%} of the moved bytes are used"),
    "conflict": Rating("Bank conflict", "lanes wait for each other in shared memory on this line"),
    "reused": Rating("Reused from cache", "this program or another one loaded the data before"),
    "unknown": Rating("Unknown", "the compiler's layout could not be read"),
}


def rating_of(kernel: Kernel, access: AccessFacts) -> str:
    """Return the worst rating that applies to an access."""
    if access.efficiency is not None and access.efficiency < UNCOALESCED:
        return "uncoalesced"
    if any(one.line == access.line and one.file == access.file for one in conflicts(kernel)):
        return "conflict"
    if access.kind == "load" and max(access.repeats, 1 / max(1e-9, 1 - access.again_in_program)) >= REDUNDANT:
        return "reused"
    return "unknown" if access.efficiency is None else "coalesced"


def conflicts(kernel: Kernel) -> Iterator[SharedAccess]:
    """Yield the shared-memory accesses with a bank conflict that matters."""
    for facts in kernel.targets.values():
        for one in facts.shared_accesses:
            if one.wavefronts >= max(FEW_WAVEFRONTS, BANK_CONFLICT * one.ideal_wavefronts):
                yield one


def embedded(data: Any) -> Markup:
    """Return data as JSON that is safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def page_data(inspection: Inspection) -> dict[str, Any]:
    """Return the data for the page's script."""
    budget = MOST_STEP_BYTES // max(1, len(inspection.kernels))
    return {
        "sectorBytes": inspection.sector_bytes,
        "uncoalescedBelow": UNCOALESCED,
        "ratings": {name: rating.word for name, rating in RATINGS.items()},
        "kernels": [_kernel_data(kernel, budget) for kernel in inspection.kernels],
    }


def _kernel_data(kernel: Kernel, budget: int) -> dict[str, Any]:
    first = next(iter(kernel.targets.values()), None)
    stepped = sum(bool(one.steps) for one in kernel.program_facts)
    return {
        "name": kernel.name,
        "grid": kernel.grid,
        "programs": kernel.programs,
        "warpLanes": 64 if first and first.target.startswith("hip") else 32,
        "stages": (first.num_stages if first else None) or 1,
        "target": first.target if first else "",
        "resources": _resources(kernel, first) if first and not first.error else None,
        "arguments": {
            one.name: {"shape": one.shape, "strides": one.strides, "dtype": one.dtype, "alignment": one.alignment}
            for one in kernel.arguments
            if one.is_tensor
        },
        "accesses": [
            {
                "kind": one.kind,
                "line": one.line,
                "shown": one.file == kernel.file,  # whether the page shows the line
                "argument": one.argument,
                "elementBytes": one.element_bytes,
                "rating": rating_of(kernel, one),
                "efficiency": one.efficiency,
                "pipelined": one.pipelined,
                "bulk": one.bulk,
            }
            for one in kernel.accesses
        ],
        "traced": [_program_data(one, budget // max(1, stepped)) for one in kernel.program_facts],
    }


def _resources(kernel: Kernel, facts: TargetFacts) -> dict[str, Any]:
    """Return what the compiled kernel takes: registers of a thread, shared memory, and which lines access it."""
    return {
        "registers": facts.registers,
        "threads": facts.num_warps * (64 if facts.target.startswith("hip") else 32),
        "sharedBytes": facts.shared_bytes,
        "shared": [
            {"kind": one.kind, "line": one.line, "wavefronts": one.wavefronts, "ideal": one.ideal_wavefronts}
            for one in facts.shared_accesses
            if one.file == kernel.file
        ],
    }


def _steps(facts: ProgramFacts, budget: int) -> list[dict[str, Any]]:
    """Return the first steps of a program, as many as fit in this number of bytes."""
    found = []
    for one in facts.steps:
        step = {
            "function": one.function,
            "line": one.line,
            "code": one.code[:LONGEST_CODE],
            "changed": [vars(variable) for variable in one.changed],
            "accesses": one.accesses,
            "dead": one.dead,
            "raised": one.raised,
        }
        budget -= len(json.dumps(step))
        if budget < 0:
            break
        found.append(step)
    return found


def _program_data(facts: ProgramFacts, budget: int) -> dict[str, Any]:
    found: dict[str, Any] = {"id": facts.program, "tiles": [(tile.argument, tile.box) for tile in facts.tiles]}
    if facts.accesses:
        found["accesses"] = [
            {
                "access": one.access,
                "active": one.active,
                "masked": one.masked,
                "runs": one.runs,
                "cut": one.cut,
                "requests": [vars(request) for request in one.requests],
            }
            for one in facts.accesses
        ]
    if facts.operations:
        found["operations"] = [vars(one) for one in facts.operations]
    if facts.steps:
        found |= {"steps": _steps(facts, budget), "stepsInAll": facts.steps_in_all}
    return found
