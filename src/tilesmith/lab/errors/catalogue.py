"""The catalogue of errors, and how to find the entry of an error."""

from __future__ import annotations

import linecache
import re

from tilesmith.lab.errors.autograd_errors import AUTOGRAD_ERRORS
from tilesmith.lab.errors.cuda_errors import CUDA_ERRORS
from tilesmith.lab.errors.explanation import Explanation
from tilesmith.lab.errors.language_errors import LANGUAGE_ERRORS
from tilesmith.lab.errors.launch_errors import LAUNCH_ERRORS
from tilesmith.lab.errors.value_errors import VALUE_ERRORS

_AROUND = (*LAUNCH_ERRORS, *AUTOGRAD_ERRORS)  # errors of the Python around a kernel
_ALL = (*_AROUND, *VALUE_ERRORS, *LANGUAGE_ERRORS, *CUDA_ERRORS)
# An entry that also reads the source line is more specific, so it comes first.
CATALOGUE: tuple[Explanation, ...] = tuple(sorted(_ALL, key=lambda one: not one.code))
_LAUNCH = re.compile(r"\]\s*\(")
_PLACE = re.compile(r"\(([^()]+\.py):(\d+)\)")


def explain(message: str, code: str = "", in_kernel: bool = True) -> Explanation | None:
    """Return the entry for an error's message and the source line that raised it; None where there is none.

    Without `code`, the line is read from the file that the message names. An error that is not `in_kernel` has an entry
    about kernels only if its line launches one.
    """
    place = _PLACE.search(message)
    if not code and place is not None:
        code = linecache.getline(place[1], int(place[2]))
    about_kernels = in_kernel or _LAUNCH.search(code)
    return next((one for one in CATALOGUE if one.fits(message, code) and (about_kernels or one in _AROUND)), None)


def with_explanation(message: str, code: str = "", in_kernel: bool = True) -> str:
    """Return a message, followed by its explanation if the catalogue has one."""
    found = explain(message, code, in_kernel)
    end = "" if message.endswith("?") else "."
    return message if found is None else f"{message.removesuffix('.')}{end} {found.text}"
