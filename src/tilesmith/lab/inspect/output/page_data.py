"""What the script of `tilesmith inspect`'s page draws from, and the colours that it and the page give to accesses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tilesmith.lab.inspect.findings.rules import BANK_CONFLICT, FEW_WAVEFRONTS, REDUNDANT, UNCOALESCED
from tilesmith.lab.inspect.model import AccessFacts, Inspection, Kernel, ProgramFacts, SharedAccess


@dataclass(frozen=True)
class Look:
    """What a colour says of an access."""

    word: str
    meaning: str


LOOKS = {
    "coalesced": Look("Coalesced", "a warp's request takes about as few sectors as its bytes need"),
    "uncoalesced": Look("Not coalesced", f"less than {UNCOALESCED:.0%} of what is moved is used"),
    "conflict": Look("Bank conflict", "lanes wait for each other at shared memory on this line"),
    "reused": Look("Reused from cache", "loaded before, by this program or by others"),
    "unknown": Look("Not known", "the compiler's layout could not be read"),
}


def look_of(kernel: Kernel, access: AccessFacts) -> str:
    """The colour of an access, by what matters most about it."""
    if access.efficiency is not None and access.efficiency < UNCOALESCED:
        return "uncoalesced"
    if any(one.line == access.line and one.file == access.file for one in conflicts(kernel)):
        return "conflict"
    if access.kind == "load" and max(access.repeats, 1 / max(1e-9, 1 - access.again_in_program)) >= REDUNDANT:
        return "reused"
    return "unknown" if access.efficiency is None else "coalesced"


def conflicts(kernel: Kernel) -> Iterator[SharedAccess]:
    """Shared memory accesses at which lanes wait for each other long enough to matter."""
    for facts in kernel.targets.values():
        for one in facts.shared_accesses:
            if one.wavefronts >= max(FEW_WAVEFRONTS, BANK_CONFLICT * one.ideal_wavefronts):
                yield one


def embedded(data: Any) -> Markup:
    """Data as JSON that may stand inside a script element, whatever names and comments it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def page_data(inspection: Inspection) -> dict[str, Any]:
    """What the page's script draws from."""
    return {
        "sectorBytes": inspection.sector_bytes,
        "uncoalescedBelow": UNCOALESCED,
        "looks": {name: look.word for name, look in LOOKS.items()},
        "kernels": [_kernel_data(kernel) for kernel in inspection.kernels],
    }


def _kernel_data(kernel: Kernel) -> dict[str, Any]:
    first = next(iter(kernel.targets.values()), None)
    return {
        "name": kernel.name,
        "grid": kernel.grid,
        "programs": kernel.programs,
        "warpLanes": 64 if first and first.target.startswith("hip") else 32,
        "stages": (first.num_stages if first else None) or 1,
        "target": first.target if first else "",
        "arguments": {
            one.name: {"shape": one.shape, "strides": one.strides, "dtype": one.dtype, "alignment": one.alignment}
            for one in kernel.arguments
            if one.is_tensor
        },
        "accesses": [
            {
                "kind": one.kind,
                "line": one.line,
                "shown": one.file == kernel.file,  # whether the line is in the source beside
                "argument": one.argument,
                "elementBytes": one.element_bytes,
                "look": look_of(kernel, one),
                "efficiency": one.efficiency,
                "pipelined": one.pipelined,
                "bulk": one.bulk,
            }
            for one in kernel.accesses
        ],
        "traced": [_program_data(one) for one in kernel.program_facts],
    }


def _program_data(facts: ProgramFacts) -> dict[str, Any]:
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
    return found
