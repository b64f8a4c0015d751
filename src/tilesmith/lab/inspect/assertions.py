"""For tests of kernels: assertions about an inspection, with messages that say where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilesmith.lab.inspect.model import Inspection, Kernel

Subject = Inspection | Kernel | Callable[[], Any]
_ALMOST = 1e-6


def assert_coalesced(subject: Subject, *, at_least: float = 0.9) -> None:
    """Every access whose layout is known moves little more than it uses.

    `at_least` is the share of the sectors that packed elements would need. `subject` is an inspection, a kernel of one,
    or a function to inspect.
    """
    bad = [
        f"{kernel.name}, line {access.line}: {access.kind} of {access.argument} takes "
        f"{access.sectors_per_request:.1f} sectors per request, packed {access.ideal_sectors_per_request:.1f} "
        f"({access.efficiency:.1%})"
        for kernel in _kernels(subject)
        for access in kernel.accesses
        if access.efficiency is not None and access.efficiency < at_least
    ]
    assert not bad, "not coalesced:\n" + "\n".join(bad)


def assert_loads_per_element(subject: Subject, argument: str, expected: float) -> None:
    """The kernels that take an argument of this name load each of its elements so many times."""
    found = [
        (kernel.name, one.loads_per_element)
        for kernel in _kernels(subject)
        for one in kernel.arguments
        if one.name == argument and one.is_tensor
    ]
    assert found, f"no kernel takes a tensor called {argument!r}"
    bad = [f"{name}: {loads:.4g}" for name, loads in found if abs(loads - expected) > _ALMOST * max(1.0, expected)]
    assert not bad, f"loads per element of {argument}, expected {expected:g}: " + "; ".join(bad)


def assert_in_bounds(subject: Subject) -> None:
    """No access leaves its tensor."""
    bad = [
        f"{kernel.name} ({finding.file}:{finding.line}): {finding.message}"
        for kernel in _kernels(subject)
        for finding in kernel.findings
        if finding.kind == "out-of-bounds"
    ]
    assert not bad, "out of bounds:\n" + "\n".join(bad)


def _kernels(subject: Subject) -> tuple[Kernel, ...]:
    if isinstance(subject, Kernel):
        return (subject,)
    if not isinstance(subject, Inspection):
        from tilesmith.lab.inspect import inspect

        subject = inspect(subject)
    assert subject.kernels, "no kernel was launched"
    return subject.kernels
