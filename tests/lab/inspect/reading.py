"""Helpers that read an inspection."""

from __future__ import annotations

import inspect as python_inspect
from typing import Any

from tilesmith.lab.inspect.model import AccessFacts, Finding, Inspection, Kernel

HOPPER = ("cuda:90",)


def line_of(kernel: Any, text: str) -> int:
    lines, first = python_inspect.getsourcelines(kernel.fn)
    return next(first + number for number, line in enumerate(lines) if text in line)


def access(kernel: Kernel, kind: str, argument: str) -> AccessFacts:
    (found,) = [one for one in kernel.accesses if (one.kind, one.argument) == (kind, argument)]
    return found


def only(found: Inspection, kind: str) -> Finding:
    (finding,) = [one for one in found.findings if one.kind == kind]
    return finding


def kinds(found: Inspection) -> set[str]:
    return {finding.kind for finding in found.findings}
