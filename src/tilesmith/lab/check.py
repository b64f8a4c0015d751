"""Compare an operator with its reference: outputs and every gradient, over cases, dtypes and layouts.

The reference runs in float64, and with modelled rounding errors, which show the error to expect. New memory is filled
with NaN, so an element that the operator misses is found. On a CPU the kernels run in the interpreter, and a wrong
element is traced to the program and line that stored it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tilesmith.lab.check_context import (
    exact_products,
    kernels_on,
    poisoned_memory,
    seeded,
    uncompiled,
    with_flat_arguments,
)
from tilesmith.lab.comparison import Comparison, identical
from tilesmith.lab.conduct import NO_KERNEL, computed_without_kernels, repeated_calls, shared_with_inputs
from tilesmith.lab.errors import with_explanation
from tilesmith.lab.expected import (
    LARGE,
    Call,
    Expected,
    is_in_place,
    names_of_changed,
    with_changed_inputs,
    writable_layouts,
)
from tilesmith.lab.races import RaceFinder
from tilesmith.lab.store_log import StoreLog, distinct_texts, explained
from tilesmith.spec import COTANGENTS, Case, Inputs, Layout, Spec, SpecError, described, source_of
from tilesmith.toolchain import interpreter

# Larger cases need a GPU: the interpreter takes about a millisecond per program and operation.
MOST_BYTES_INTERPRETED = 1 << 20
FEW_BYTES = 256  # of all inputs; below it a norm of one column or another result may not depend on the numbers


@dataclass(frozen=True)
class Result:
    """One comparison. `error` and `allowed` are relative to the norm of the reference."""

    op: str
    case: str
    dtype: str
    layout: str
    what: str  # "forward", "gradient x"; of other failures, "backward", "input x", "race", "kernels", …
    error: float
    allowed: float
    passed: bool
    message: str = ""


@dataclass(frozen=True)
class Trial:
    """One combination of case, dtype and layout to check."""

    spec: Spec
    case: Case
    dtype: torch.dtype
    layout: Layout
    device: str
    repeated: bool = False  # whether to call again with other numbers
    seed: int = 0
    second_backward: bool = True  # whether to call backward again

    def result(self, what: str, error: float, allowed: float, message: str = "") -> Result:
        dtype = str(self.dtype).removeprefix("torch.")
        passed = not message
        return Result(self.spec.name, self.case.name, dtype, self.layout.name, what, error, allowed, passed, message)

    def failure(self, what: str, message: str) -> Result:
        return self.result(what, float("inf"), 0.0, message)


def check(
    spec: Spec,
    *,
    cases: Iterable[Case] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    layouts: Sequence[Layout] | None = None,
    device: str | None = None,
) -> Iterator[Result]:
    """Compare the operator of a spec with its reference. Yield each result as soon as it is known."""
    chosen = trials(spec, cases=cases, dtypes=dtypes, layouts=layouts, device=device)
    for trial in chosen:
        yield from run(trial)
    yield from kernels_matter(chosen)


def trials(
    spec: Spec,
    *,
    cases: Iterable[Case] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    layouts: Sequence[Layout] | None = None,
    device: str | None = None,
) -> list[Trial]:
    """Return the trials of `check`. On a CPU the default cases are those small enough for the interpreter."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cases = None if cases is None else list(cases)
    with suppress(SpecError):  # the trials report it
        spec = with_flat_arguments(spec, _shapes(spec, (cases or spec.cases)[0]))
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
    return sum(value.nbytes for value in tree_leaves(_shapes(spec, case)) if isinstance(value, Tensor))


def _shapes(spec: Spec, case: Case) -> Inputs:
    """Return the inputs of a case, without memory where `make_inputs` takes the device `meta`."""
    try:
        return spec.inputs(case, spec.dtypes[0], "meta")
    except SpecError:
        return spec.inputs(case, spec.dtypes[0], "cpu")


def run(trial: Trial) -> list[Result]:
    """Check one trial: outputs, gradients, unchanged inputs, races, and further calls."""
    with exact_products(), uncompiled(trial.device):
        return list(_results(replace(trial, spec=with_changed_inputs(trial.spec))))


def kernels_matter(chosen: Sequence[Trial]) -> list[Result]:
    """Check that the operator's kernels compute its result. This may spoil what the operator keeps, so do it last."""
    if not chosen or chosen[0].device != "cpu" or not chosen[0].spec.kernels:
        return []
    with exact_products(), uncompiled(chosen[0].device):
        trial = next(filter(_has_elements, chosen), chosen[0])
        trial = replace(trial, spec=with_changed_inputs(trial.spec))
        inputs, expected = _prepared(trial)
        with poisoned_memory():
            found = list(
                computed_without_kernels(trial.spec.op, inputs, expected, expected.differentiable, trial.spec.roundings)
            )
    return [trial.failure("kernels", message) for message in found]


def _has_elements(trial: Trial) -> bool:
    """Return whether no input of the trial is empty."""
    return _all_have_elements(_shapes(trial.spec, trial.case))


def _all_have_elements(inputs: Inputs) -> bool:
    return all(value.numel() for value in tree_leaves(inputs) if isinstance(value, Tensor))


def _prepared(trial: Trial) -> tuple[Inputs, Expected]:
    with seeded(trial.device, trial.seed), poisoned_memory():
        inputs = trial.spec.inputs(trial.case, trial.dtype, trial.device, trial.layout)
        return inputs, _expected(trial, inputs)


def _results(trial: Trial) -> Iterator[Result]:
    try:
        inputs, expected = _prepared(trial)
    except (SpecError, torch.AcceleratorError) as error:
        if not isinstance(error, torch.AcceleratorError) and not isinstance(error.__cause__, torch.AcceleratorError):
            raise
        yield trial.failure("forward", "not checked: the GPU stopped working after an earlier error")
        return
    stores, races = StoreLog(), RaceFinder()
    storages = {name: _storage(value).clone() for name, value in inputs.items() if isinstance(value, Tensor)}
    tried = _Tried(trial, inputs, expected, stores, races)
    if tried.failures:
        yield from tried.failures
        return
    found = list(_compared(trial, inputs, expected, tried, stores, storages))
    found += [trial.failure("race", message) for message in races.races()]
    yield from found
    if all(result.passed for result in found) and not is_in_place(trial.spec):
        yield from _further_calls(trial, inputs, expected, tried, races)


def _compared(
    trial: Trial,
    inputs: Inputs,
    expected: Expected,
    tried: _Tried,
    stores: StoreLog,
    storages: Mapping[str, Tensor],
) -> Iterator[Result]:
    """Yield the comparisons of all outputs and gradients, and the failures of the inputs."""
    names = _names(trial, inputs, len(tried.outputs))
    for number, (what, ours) in enumerate(zip(names, tried.outputs, strict=True)):
        if what.startswith("input") and any(ours.is_set_to(other) for other in tried.outputs[:number]):
            continue  # an in-place operator returns it
        comparison = expected.compare_output(number, ours, trial.spec.roundings)
        yield _judged(trial, what, comparison, ours, expected.exact.outputs[number], stores)
    for name in expected.differentiable:
        yield from _gradient_results(trial, name, tried, expected, stores)
    if is_in_place(trial.spec):
        return
    changed = list(_unchanged(trial, inputs, expected.inputs, stores))
    yield from changed or _unchanged_around(trial, inputs, storages)
    for message in shared_with_inputs(tried.outputs, inputs, expected.plain.outputs):
        yield trial.failure("memory", message)


def _names(trial: Trial, inputs: Inputs, count: int) -> list[str]:
    """Return what to call each output: those that the operator returns, and inputs that it may change."""
    changed = [f"input {name}" for name in names_of_changed(trial.spec, inputs)]
    returned = count - len(changed)
    return [f"forward {number}" if returned > 1 else "forward" for number in range(returned)] + changed


def _further_calls(
    trial: Trial, inputs: Inputs, expected: Expected, tried: _Tried, races: RaceFinder
) -> Iterator[Result]:
    """Yield the failures of calls with other numbers, and of calls without gradients."""
    spec = trial.spec
    needs_kernels = spec.kernels and trial.device == "cpu" and any(one.numel() for one in tried.outputs)
    needs_kernels = needs_kernels and _all_have_elements(inputs)  # the sum of no rows is zero without a kernel
    if needs_kernels and not races.launches:
        yield trial.failure("kernels", NO_KERNEL)
        return
    if not trial.repeated or sum(one.nbytes for one in inputs.values() if isinstance(one, Tensor)) > LARGE:
        return
    with seeded(trial.device, trial.seed + 2):
        others = [spec.inputs(trial.case, trial.dtype, trial.device, trial.layout) for _ in range(3)]
    launches = RaceFinder()
    first = tried.outputs

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
                failures = list(faults(others[1:], ()))
                if needs_kernels and not failures and not launches.launches:
                    failures = [trial.failure("kernels", f"without gradients, {NO_KERNEL}")]
    except Exception as error:
        failures = [trial.failure("second call", described(error, source_of(spec.op)))]
    yield from failures


def _expected(trial: Trial, inputs: Inputs) -> Expected:
    spec, layout = trial.spec, trial.layout.in_turn(COTANGENTS)
    try:
        return Expected(
            spec.reference,
            inputs,
            spec.leaves(inputs),
            lambda output: layout(torch.randn(output.shape, dtype=trial.dtype, device=output.device)),
        )
    except Exception as error:
        reason = described(error, source_of(spec.reference))
        if is_in_place(spec) and spec.leaves(inputs):
            reason += "; if the operator has no gradients, set differentiable=False in its SPEC"
        raise SpecError(f"{spec.name}: the reference fails for {trial.case!r}, {trial.dtype}: {reason}") from error


class _Tried:
    """The operator's outputs and gradients. `failures` is not empty where the operator raises or has wrong shapes."""

    def __init__(self, trial: Trial, inputs: Inputs, expected: Expected, stores: StoreLog, races: RaceFinder) -> None:
        self.failures: list[Result] = []
        stage = "forward"
        try:
            with poisoned_memory(), kernels_on(trial.device, stores, races):
                call = Call(trial.spec.op, inputs, expected.differentiable)
                self.outputs = call.outputs
                names = _names(trial, inputs, len(expected.plain.outputs))
                self.failures = list(_misshapen(trial, names, call.outputs, expected.plain.outputs))
                if not self.failures:
                    stage = "backward"
                    self.gradients = call.gradients(expected.cotangents)
                    again = trial.second_backward
                    self.second_gradients = call.gradients(expected.cotangents) if again else self.gradients
        except (interpreter.KernelError, interpreter.OutOfBounds) as error:
            self.failures = [trial.failure(stage, with_explanation(str(error)))]
        except Exception as error:
            message = described(error, source_of(trial.spec.op))
            self.failures = [trial.failure(stage, with_explanation(message, in_kernel=False))]


def _tensors(number: int) -> str:
    return f"{number} tensor" + "s" * (number != 1)


def _misshapen(
    trial: Trial, names: Sequence[str], outputs: Sequence[Tensor], wanted: Sequence[Tensor]
) -> Iterator[Result]:
    """Yield a failure for each output of wrong number, shape, dtype or device."""
    if len(outputs) != len(wanted):
        changed = sum(name.startswith("input") for name in names)
        returned, needed = len(outputs) - changed, len(wanted) - changed
        yield trial.failure("forward", f"returns {_tensors(returned)}, but must return {needed}")
        return
    for what, output, like in zip(names, outputs, wanted, strict=True):
        if output.shape != like.shape:
            yield trial.failure(what, f"has shape {tuple(output.shape)}, but must have {tuple(like.shape)}")
        elif output.dtype != like.dtype:
            yield trial.failure(what, f"has dtype {output.dtype}, but must have {like.dtype}")
        elif output.device != like.device:
            yield trial.failure(what, f"is on {output.device}, but must be on {like.device}")
        elif output.is_complex():
            yield trial.failure(what, "is complex, which cannot be compared")


def _gradient_results(trial: Trial, name: str, tried: _Tried, expected: Expected, stores: StoreLog) -> Iterator[Result]:
    what = f"gradient {name}"
    ours, again = tried.gradients[name], tried.second_gradients[name]
    exact = expected.exact.gradients[name]
    if ours is None and exact is None:
        return
    if ours is None:
        yield trial.failure(
            what, f"no gradient reaches {name}; if the operator has no gradients, set differentiable=False in its SPEC"
        )
        return
    exact = torch.zeros_like(ours, dtype=torch.float64) if exact is None else exact
    yield _judged(trial, what, expected.compare_gradient(name, ours, trial.spec.roundings), ours, exact, stores)
    if again is None:
        yield trial.failure(what, f"a second backward gives {name} no gradient")
    elif not identical(ours, again):  # atomics may change the rounding, which the rule allows
        comparison = expected.compare_gradient(name, again, trial.spec.roundings)
        second = _judged(trial, what, comparison, again, exact, stores)
        if not second.passed:
            message = f"a second backward gives another gradient: {second.message}"
            yield trial.result(what, second.error, second.allowed, message)


def _judged(trial: Trial, what: str, comparison: Comparison, ours: Tensor, exact: Tensor, stores: StoreLog) -> Result:
    message = "" if comparison.passed else explained(comparison, ours, exact, stores)
    return trial.result(what, comparison.error, comparison.allowed, message)


def _unchanged(trial: Trial, inputs: Inputs, before: Inputs, stores: StoreLog) -> Iterator[Result]:
    for name, value in inputs.items():
        if isinstance(value, Tensor) and not identical(value, before[name]):
            changed = (value != before[name]) & ~((value != value) & (before[name] != before[name]))
            index = [int(part) for part in changed.nonzero()[0]]
            was, now = distinct_texts(before[name][tuple(index)].item(), value[tuple(index)].item())
            writer = stores.writer_of(value, index)
            stored = f"; stored by {writer}" if writer else ""
            message = f"the operator changes its input: element {index} was {was} and is now {now}{stored}"
            yield trial.failure(f"input {name}", message)


def _unchanged_around(trial: Trial, inputs: Inputs, before: Mapping[str, Tensor]) -> Iterator[Result]:
    """Yield a failure for each input whose memory changed beside its elements, such as between its rows."""
    for name, value in inputs.items():
        if isinstance(value, Tensor) and not torch.equal(_storage(value), before[name]):
            yield trial.failure(f"input {name}", f"the operator writes to memory between the elements of {name}")


def _storage(tensor: Tensor) -> Tensor:
    """Return all bytes of a tensor's memory."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
