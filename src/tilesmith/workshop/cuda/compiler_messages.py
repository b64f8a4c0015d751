"""A compiler's first error about a CUDA file, in a learner's words."""

from __future__ import annotations

import re
from pathlib import Path

from tilesmith.lab.errors import with_explanation

_ERROR = re.compile(r"\berror(?: #\d+)?: ?(.*)|undefined reference to .*")
_LAUNCHED_WITH = re.compile(r"no match for call to '\(tilesmith::Launch<(.*)>\) \((.*)\)'")
_CONFIGURED_WITH = re.compile(r"no matching function for call to 'launch\([^,]*\((?:&|\*)?\)\([^()]*\)(?:, )?(.*)\)'")
_FLAGS = re.compile(r"\s*\[-[\w=+-]+\]")


def first_error(output: str, file: Path, signature: str) -> str:
    """Return the first error in a compiler's output: the learner's line, the message, and what it means.

    `signature` is the first line of the function that the check calls, for errors outside of the learner's file.
    """
    lines = [line.replace(f"{file.parent}/", "") for line in output.replace("‘", "'").replace("’", "'").splitlines()]
    errors = [line for line in lines if _ERROR.search(line)]
    if not errors:
        return lines[0] if lines else "the compiler ended without a message"
    mine = [line for line in errors if line.startswith(file.name) or f"{file.name}:" in line]
    if not mine:
        return f"{_message(errors[0])}. The check calls {signature}: keep its name and the order of its arguments."
    message = _message(mine[0])
    place = re.search(rf"{re.escape(file.name)}[:(](\d+)", mine[0])
    source = file.read_text(encoding="utf-8", errors="replace").splitlines()
    number = int(place[1]) if place else 0
    code = source[number - 1] if 0 < number <= len(source) else ""
    quoted = f"{file.name}:{number}\n    {code.strip()}\n" if code else ""
    return quoted + with_explanation(message, code)


def _message(line: str) -> str:
    found = _ERROR.search(line)
    message = _FLAGS.sub("", (found[1] or found[0]) if found else line)
    message = _LAUNCHED_WITH.sub(
        lambda told: f"the kernel takes ({told[1]}), but the launch passes ({told[2].replace('&', '')})", message
    )
    return _CONFIGURED_WITH.sub(lambda told: f"the launch passes <<<{told[1].replace('&', '')}>>>", message)
