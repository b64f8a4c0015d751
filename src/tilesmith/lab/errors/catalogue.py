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

# An entry that also reads the source line is more specific, so it comes first.
_ALL = (*LAUNCH_ERRORS, *AUTOGRAD_ERRORS, *VALUE_ERRORS, *LANGUAGE_ERRORS, *CUDA_ERRORS)
CATALOGUE: tuple[Explanation, ...] = tuple(sorted(_ALL, key=lambda one: not one.code))
_PLACE = re.compile(r"\(([^()]+\.py):(\d+)\)")


def explain(message: str, code: str = "") -> Explanation | None:
    """Return the entry for an error's message and the source line that raised it; None where there is none.

    Without `code`, the line is read from the file that the message names.
    """
    place = _PLACE.search(message)
    if not code and place is not None:
        code = linecache.getline(place[1], int(place[2]))
    return next((one for one in CATALOGUE if one.fits(message, code)), None)


def with_explanation(message: str, code: str = "") -> str:
    """Return a message, followed by its explanation if the catalogue has one."""
    found = explain(message, code)
    return message if found is None else f"{message.removesuffix('.')}. {found.text}"
