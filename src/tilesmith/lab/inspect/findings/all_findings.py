"""All rules, in the order in which findings of equal weight appear."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilesmith.lab.inspect.findings import compiled_kernel, correctness, memory_access, numbers
from tilesmith.lab.inspect.findings.evidence import Evidence
from tilesmith.lab.inspect.model import Finding, Severity

Rule = Callable[[Evidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    correctness.kernel_error,
    correctness.host_tensors,
    correctness.incidents,
    correctness.false_hints,
    numbers.not_finite,
    numbers.low_precision,
    compiled_kernel.compile_errors,
    compiled_kernel.large_grids,
    compiled_kernel.missing_allocators,
    compiled_kernel.lost_assignments,
    compiled_kernel.spills,
    memory_access.narrow,
    memory_access.narrowed_by_mask,
    memory_access.uncoalesced,
    memory_access.redundant,
    memory_access.masked,
    correctness.missing_masks,
    compiled_kernel.bank_conflicts,
    compiled_kernel.occupancy,
    compiled_kernel.tail_effect,
    correctness.overlaps,
)
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Return all findings: errors first, then by cost."""
    found = [finding for rule in RULES for finding in rule(evidence)]
    return tuple(sorted(found, key=lambda one: (_ORDER[one.severity], -one.cost_bytes)))
