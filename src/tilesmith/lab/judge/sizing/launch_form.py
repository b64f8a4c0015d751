"""What a call launches, apart from its sizes: a call of another form took another branch of the candidate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

_SAME_RESULTS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def launch_form(tape: Mapping[str, Any]) -> str:
    """Return the kernels, operators and constants of a tape as text, with one sign for all sizes."""
    steps = [_step(step) for step in tape["steps"] if isinstance(step, Mapping)]
    texts = [one.get("text") for one in tape["kernels"] if isinstance(one, Mapping)]
    return json.dumps([steps, texts], sort_keys=True, default=str)


def _step(step: Mapping[str, Any]) -> Any:
    if "kernel" in step:
        return [step["kernel"], _form(step.get("grid")), _form(step.get("arguments"))]
    return [step.get("operator"), len(step.get("args") or ())]


def _form(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if value in (0, 1) else "2^n" if value > 0 and value & (value - 1) == 0 else "n"
    if isinstance(value, float):
        return value if value in (0.0, 1.0) else "number"
    if isinstance(value, Mapping):
        return {str(key): key if key in ("tensor", "bytes") else _form(one) for key, one in value.items()}
    return [_form(one) for one in value] if isinstance(value, Sequence) else str(value)


def programs_of(tape: Mapping[str, Any]) -> int:
    """Return how many programs the launches of a tape have. A tape may be forged: then it has no end of them."""
    try:
        return sum(prod(int(size) for size in step["grid"]) for step in tape["steps"] if "kernel" in step)
    except (KeyError, TypeError, ValueError):
        return 1 << 62


def computation_of(tape: Mapping[str, Any]) -> str:
    """Return the kernels and launches of a tape as text, without the options that compute the same."""
    steps = [
        {**step, "options": {name: one for name, one in step["options"].items() if name not in _SAME_RESULTS}}
        if isinstance(step.get("options"), dict)
        else step
        for step in tape["steps"]
    ]
    return json.dumps([steps, tape["kernels"]], sort_keys=True, default=str)
