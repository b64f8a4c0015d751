"""Choose the trials of a spec: its cases, dtypes and layouts, and which of them to call again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tilesmith.lab.check.context import with_flat_arguments
from tilesmith.lab.check.trial import Trial
from tilesmith.lab.expected import writable_layouts
from tilesmith.spec import Case, Inputs, Layout, Spec, SpecError, described, source_of

# Larger cases need a GPU: the interpreter takes about a millisecond per program and operation.
MOST_BYTES_INTERPRETED = 1 << 20
FEW_BYTES = 256  # of all inputs; below it a norm of one column or another result may not depend on the numbers


def trials(
    spec: Spec,
    *,
    cases: Iterable[Case] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    layouts: Sequence[Layout] | None = None,
    device: str | None = None,
) -> list[Trial]:
    """Return the trials of a check. On a CPU the default cases are those small enough for the interpreter."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cases = None if cases is None else list(cases)
    with suppress(SpecError):  # the trials report it
        spec = with_flat_arguments(spec, input_shapes(spec, (cases or spec.cases)[0]))
    chosen = [case for case in spec.cases if device != "cpu" or interpretable(spec, case)] if cases is None else cases
    chosen, layouts = list(chosen), layouts or writable_layouts(spec)
    again = _repeated_case(spec, chosen)
    return [
        # The last layout has other numbers than the first, so a result kept by its shape is wrong there.
        Trial(spec, case, dtype, layout, device, case is again and number == 0, int(0 < number == len(layouts) - 1))
        for case in chosen
        for dtype in dtypes or spec.dtypes
        for number, layout in enumerate(layouts)
    ]


def _repeated_case(spec: Spec, cases: Sequence[Case]) -> Case | None:
    """Return the case to call again with other numbers: the smallest with results that depend on the numbers."""
    try:
        sized = sorted((input_bytes(spec, case), number) for number, case in enumerate(cases))
    except SpecError:  # the trials report it
        return cases[0]
    enough = [number for size, number in sized if size >= FEW_BYTES] or [number for _, number in sized[-1:]]
    return cases[enough[0]] if enough else None


def interpretable(spec: Spec, case: Case) -> bool:
    """Return whether the case is small enough for the interpreter."""
    if spec.cost is not None:
        try:
            return spec.cost(case, spec.dtypes[0]).forward.bytes <= MOST_BYTES_INTERPRETED
        except Exception as error:
            raise SpecError(
                f"{spec.name}: cost fails for {case!r}: {described(error, source_of(spec.cost))}"
            ) from error
    return input_bytes(spec, case) <= MOST_BYTES_INTERPRETED


def input_bytes(spec: Spec, case: Case) -> int:
    return sum(value.nbytes for value in tree_leaves(input_shapes(spec, case)) if isinstance(value, Tensor))


def input_shapes(spec: Spec, case: Case) -> Inputs:
    """Return the inputs of a case, without memory where `make_inputs` takes the device `meta`."""
    try:
        return spec.inputs(case, spec.dtypes[0], "meta")
    except SpecError:
        return spec.inputs(case, spec.dtypes[0], "cpu")
