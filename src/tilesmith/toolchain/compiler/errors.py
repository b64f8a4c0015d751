"""Compiler errors as one text that a user can act on."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from triton.compiler.errors import CompilationError

from tilesmith.toolchain.compiler.inline_assembly import ptxas_reasons, rejected_place
from tilesmith.toolchain.compiler.targets import Target

_LONGEST_DIAGNOSTIC = 300


class CompileError(Exception):
    """A target's compiler rejects a kernel. `line` is the line in the kernel's source, where Triton names one."""

    fault = "does not compile for"

    def __init__(self, target: Target, kernel: str, message: str, file: str, line: int | None) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{kernel} {self.fault} {target} ({place})\n{message}")
        self.target = target
        self.kernel = kernel
        self.message = message
        self.file = file
        self.line = line


class MiscompileError(CompileError):
    """A compiled kernel computes something else than its source says."""

    fault = "is compiled wrongly for"


def explain(error: Exception, target: Target, function: Any, diagnostics: str = "", ir_text: str = "") -> CompileError:
    """Return Triton's error and the diagnostics of its native compiler as a CompileError.

    `ir_text` is the text of the front end, where the error is of a later stage.
    """
    line = None
    if isinstance(error, CompilationError):  # the node of a refused name is the name
        line = first_line(function) + getattr(error.node, "lineno", 1) - 1
    # Each call of a device function wraps the error once; only the innermost names the reason.
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    place = rejected_place(f"{message}\n{diagnostics}", ir_text) if ir_text else None
    reasons = [text.strip()[:_LONGEST_DIAGNOSTIC] for text in diagnostics.splitlines() if "error:" in text]
    message = "\n".join(ptxas_reasons(message)) or re.sub(r"\s*Repro command:.*", "", message).rstrip()
    message = "\n".join(dict.fromkeys([message or type(error).__name__, *reasons]))
    file = function.fn.__code__.co_filename
    line = line or _diagnosed_line(diagnostics, file)
    return CompileError(target, function.__name__, message, *(place if place and line is None else (file, line)))


def _diagnosed_line(diagnostics: str, file: str) -> int | None:
    """Return the first line of the kernel's file that the native compiler names in an error; None if it names none."""
    found = re.search(rf"^{re.escape(file)}:(\d+):\d+: error:", diagnostics, re.MULTILINE)
    return int(found[1]) if found else None


def machine_failure(error: OSError, target: Target, function: Any) -> CompileError:
    """Return the error for a compiler that could not run: a full disk, a folder without permission, a missing tool."""
    message = f"the compiler could not run on this machine, which is no fault of the kernel: {error}"
    return CompileError(target, function.__name__, message, function.fn.__code__.co_filename, None)


def first_line(function: Any) -> int:
    """Return the line of `def`: Triton counts lines from there, Python from the decorator."""
    above: int = next(place for place, text in enumerate(function.raw_src) if text.lstrip().startswith("def "))
    return int(function.starting_line_number) + above


@contextmanager
def captured_stderr() -> Iterator[BinaryIO]:
    """Collect what native code writes to the standard error of the process."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(original, 2)
            os.close(original)


def first_reason(text: str) -> str:
    """Return the first line of a compiler's message that names a reason: no source line, no marker below it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        found = re.search(r"\berror:\s*(.+)", line) or re.match(r"((?:\w+Error|AssertionError)\b.*)", line)
        if found:
            return found[1]
    plain = [line for line in lines if line.strip("^~ ") and not re.match(r"at \d+:\d+:?", line)]
    # Triton's own errors print source lines up to a marker, then the reason.
    after = [at for at, line in enumerate(lines) if not line.strip("^~ ")]
    behind = lines[after[0] + 1 :] if after else []
    return next(iter(behind or plain), "")
