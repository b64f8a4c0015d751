"""Call an operator again: with other numbers, without gradients, and with its kernels switched off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor
from torch.utils._pytree import tree_leaves

from tilesmith.lab.check.choosing import input_shapes
from tilesmith.lab.check.context import (
    ZeroedIntegers,
    exact_products,
    kernels_on,
    poisoned_memory,
    seeded,
    uncompiled,
)
from tilesmith.lab.check.preparing import prepared
from tilesmith.lab.check.trial import Result, Trial
from tilesmith.lab.conduct import NO_KERNEL, computed_without_kernels, repeated_calls
from tilesmith.lab.expected import LARGE, Expected, with_changed_inputs
from tilesmith.lab.races import RaceFinder
from tilesmith.spec import Inputs, described, source_of

IN_FURTHER = "not in the first call, but in a further one, whose numbers and unwritten integers are others"


def further_calls(
    trial: Trial, inputs: Inputs, expected: Expected, first: Sequence[Tensor], races: RaceFinder
) -> Iterator[Result]:
    """Yield the failures of calls with other numbers, and of calls without gradients."""
    spec = trial.spec
    needs_kernels = spec.kernels and trial.device == "cpu" and any(one.numel() for one in first)
    needs_kernels = needs_kernels and _all_have_elements(inputs)  # the sum of no rows is zero without a kernel
    if needs_kernels and not races.launches:
        yield trial.failure("kernels", NO_KERNEL)
        return
    if not trial.repeated or sum(one.nbytes for one in inputs.values() if isinstance(one, Tensor)) > LARGE:
        return
    with seeded(trial.device, trial.seed + 2):
        others = [spec.inputs(trial.case, trial.dtype, trial.device, trial.layout) for _ in range(3)]
    launches = RaceFinder()

    def faults(others: Sequence[Inputs], differentiable: Sequence[str]) -> Iterator[Result]:
        for message in repeated_calls(
            spec.op, spec.reference, inputs, others, differentiable, first,
            lambda stores: kernels_on(trial.device, launches, stores), spec.roundings,
        ):  # fmt: skip
            yield trial.failure("second call", message)

    try:
        with poisoned_memory():
            failures = list(faults(others[:1], expected.differentiable))
            if not failures:
                launches.launches = 0
                with ZeroedIntegers():
                    failures = list(faults(others[1:], ()))
                if needs_kernels and not failures and not launches.launches:
                    failures = [trial.failure("kernels", f"without gradients, {NO_KERNEL}")]
            failures = failures or [trial.failure("race", f"{found}; {IN_FURTHER}") for found in launches.races()]
    except Exception as error:
        failures = [trial.failure("second call", described(error, source_of(spec.op)))]
    yield from failures


def kernels_matter(chosen: Sequence[Trial]) -> list[Result]:
    """Check that the operator's kernels compute its result. This may spoil what the operator keeps, so do it last."""
    if not chosen or chosen[0].device != "cpu" or not chosen[0].spec.kernels:
        return []
    with exact_products(), uncompiled(chosen[0].device):
        trial = next(filter(_has_elements, chosen), chosen[0])
        trial = replace(trial, spec=with_changed_inputs(trial.spec))
        inputs, expected = prepared(trial)
        with poisoned_memory():
            found = list(
                computed_without_kernels(trial.spec.op, inputs, expected, expected.differentiable, trial.spec.roundings)
            )
    return [trial.failure("kernels", message) for message in found]


def _has_elements(trial: Trial) -> bool:
    """Return whether no input of the trial is empty."""
    return _all_have_elements(input_shapes(trial.spec, trial.case))


def _all_have_elements(inputs: Inputs) -> bool:
    return all(value.numel() for value in tree_leaves(inputs) if isinstance(value, Tensor))
