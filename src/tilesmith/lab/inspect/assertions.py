"""Assertions about an inspection, for tests of kernels. Each failure names the kernel and the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilesmith.arguments import TEXT, number, require
from tilesmith.lab.inspect.inspect_call import inspect
from tilesmith.lab.inspect.model import Inspection, Kernel

Subject = Inspection | Kernel | Callable[[], Any]
_TOLERANCE = 1e-6


def assert_coalesced(subject: Subject, *, at_least: float = 0.9) -> None:
    """Assert that every access with a known layout has at least this efficiency.

    Efficiency is the number of sectors that packed elements need, divided by the number requested. `subject` is an
    inspection, a kernel of an inspection, or a function to inspect.
    """
    require("assert_coalesced", "at_least", at_least, number(0, 1))
    bad = [
        f"{kernel.name}, line {access.line}: {access.kind} of {access.argument} takes "
        f"{access.sectors_per_request:.1f} sectors per request, ideal is {access.ideal_sectors_per_request:.1f} "
        f"({access.efficiency:.1%})"
        for kernel in _kernels(subject)
        for access in kernel.accesses
        if access.efficiency is not None and access.efficiency < at_least
    ]
    assert not bad, "not coalesced:\n" + "\n".join(bad)


def assert_loads_per_element(subject: Subject, argument: str, expected: float) -> None:
    """Assert how often each kernel with this argument loads each element of it."""
    require("assert_loads_per_element", "argument", argument, TEXT)
    require("assert_loads_per_element", "expected", expected, number(0))
    found = [
        (kernel.name, one.loads_per_element)
        for kernel in _kernels(subject)
        for one in kernel.arguments
        if one.name == argument and one.is_tensor
    ]
    assert found, f"no kernel takes a tensor called {argument!r}"
    bad = [f"{name}: {loads:.4g}" for name, loads in found if abs(loads - expected) > _TOLERANCE * max(1.0, expected)]
    assert not bad, f"loads per element of {argument}, expected {expected:g}: " + "; ".join(bad)


def assert_in_bounds(subject: Subject) -> None:
    """Assert that no access leaves its tensor."""
    bad = [
        f"{kernel.name} ({finding.file}:{finding.line}): {finding.message}"
        for kernel in _kernels(subject)
        for finding in kernel.findings
        if finding.kind in ("out-of-bounds", "overflow")
    ]
    assert not bad, "out of bounds:\n" + "\n".join(bad)


def _kernels(subject: Subject) -> tuple[Kernel, ...]:
    if isinstance(subject, Kernel):
        return (subject,)
    if not isinstance(subject, Inspection):
        subject = inspect(subject)
    why = subject.ending.message.strip()
    assert subject.kernels, "no kernel was launched" + (f": {why.splitlines()[-1]}" if why else "")
    return subject.kernels
