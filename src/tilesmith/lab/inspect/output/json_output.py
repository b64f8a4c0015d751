"""An inspection as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilesmith.lab.inspect.model import ConfigurationFacts, Finding, Inspection, Kernel, TargetFacts

SCHEMA = 1


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as JSON data, without addresses, operations and the compiler's texts."""
    return {
        "tilesmith": inspection.tilesmith,
        "schema": SCHEMA,
        "torch": inspection.torch,
        "triton": inspection.triton,
        "script": inspection.script,
        "arguments": list(inspection.arguments),
        "device": inspection.device,
        "has_gpu": inspection.has_gpu,
        "sector_bytes": inspection.sector_bytes,
        "ending": asdict(inspection.ending),
        "notes": list(inspection.notes),
        "kernels": [_kernel(kernel) for kernel in inspection.kernels],
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "file": kernel.file,
        "line": kernel.line,
        "launches": kernel.launches,
        "grid": list(kernel.grid),
        "programs": kernel.programs,
        "programs_traced": kernel.programs_traced,
        "sampled": kernel.sampled,
        "constants": dict(kernel.constants),
        "options": dict(kernel.options),
        "arguments": [asdict(argument) for argument in kernel.arguments],
        "accesses": [asdict(access) for access in kernel.accesses],
        "flops": kernel.flops,
        "flops_by_kind": dict(kernel.flops_by_kind),
        "arithmetic_intensity": kernel.arithmetic_intensity,
        "bytes": kernel.bytes,
        "unique_bytes": kernel.unique_bytes,
        "bound": kernel.bound,
        "measured_us": kernel.measured_us,
        "measured_note": kernel.measured_note,
        "targets": {name: _target(facts) for name, facts in kernel.targets.items()},
        "lines": [asdict(line) for line in kernel.lines],
        "configurations": [_configuration(one) for one in kernel.configurations],
        "precision": [asdict(line) for line in kernel.precision],
        "findings": [_finding(finding) for finding in kernel.findings],
        "notes": list(kernel.notes),
    }


def _target(facts: TargetFacts) -> dict[str, Any]:
    found = {
        name: value for name, value in vars(facts).items() if name not in ("assembly", "shared_accesses", "target")
    }
    found["vector_bytes"] = {str(line): width for line, width in facts.vector_bytes.items()}
    found["shared_accesses"] = [asdict(access) for access in facts.shared_accesses]
    return found


def _configuration(one: ConfigurationFacts) -> dict[str, Any]:
    kept = ("error", "registers", "spill_bytes", "shared_bytes", "occupancy", "limited_by", "waves")
    return {
        "number": one.number,
        "values": dict(one.values),
        "programs": one.programs,
        "target": one.facts.target,
        **{name: getattr(one.facts, name) for name in kept},
        "predicted_us": one.predicted_us,
        "measured_us": one.measured_us,
        "chosen": one.chosen,
        "cannot_win": one.cannot_win,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "program": list(finding.program) if finding.program else None}
