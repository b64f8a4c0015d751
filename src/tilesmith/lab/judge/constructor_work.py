"""Work that a module does in its constructor: a call must not use results that nobody times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.recorded import Failure, Recorded
from tilesmith.lab.judge.recording.plain_values import dtype_named
from tilesmith.lab.judge.tape_checks import references_in
from tilesmith.lab.judge.verdict import Reason


def refuse_derived_weights(one: Recorded, other: Recorded, weights: list[Tensor]) -> None:
    """Refuse memory from before the call that was computed from weights. Raises Failure.

    The two records come from modules that were made with different random numbers. What is the same in both is a table.
    What differs must hold the task's weights, in any order and dtype: a transposed copy is fine, a product is not.
    """
    for number, content in one.constants.items():
        twin = other.constants.get(number)
        if twin is None or torch.equal(content, twin):
            continue
        dtypes = {name for storage, name in _uses(one) if storage == int(number)}
        if not any(_holds_weights(content, dtype_named(name), weights) for name in dtypes):
            message = "the module computes with its weights in the constructor, where no clock runs"
            advice = "Compute in forward. The constructor may copy weights, also transposed or in another dtype."
            raise Failure(Reason("constructor", "honest", message, advice))


def _uses(recorded: Recorded) -> set[tuple[int, str]]:
    """Return the storages that steps use, with the dtypes under which they do."""
    values: list[Any] = [step.get(part) for step in recorded.tape["steps"] for part in ("arguments", "args", "kwargs")]
    return {(reference[0], str(reference[1])) for value in values for reference in references_in(value)}


def _holds_weights(content: Tensor, dtype: torch.dtype, weights: list[Tensor]) -> bool:
    if content.numel() % dtype.itemsize or not dtype.is_floating_point:
        return False
    values = content.view(dtype).double()
    known = torch.cat([one.detach().flatten().to(dtype).double() for one in weights] + [torch.zeros(1).double()])
    return bool(torch.isin(values, known).all())
