"""Run a trial: compare outputs and every gradient with the reference, and find changed inputs and races.

The reference runs in float64, and with modelled rounding errors, which show the error to expect. New memory is filled
with NaN, so an element that the operator misses is found. On a CPU the kernels run in the interpreter, and a wrong
element is traced to the program and line that stored it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tilesmith.lab.check.context import exact_products, kernels_on, poisoned_memory, uncompiled
from tilesmith.lab.check.further_calls import further_calls
from tilesmith.lab.check.preparing import prepared
from tilesmith.lab.check.trial import Result, Trial
from tilesmith.lab.comparison import Comparison, identical
from tilesmith.lab.conduct import shared_with_inputs
from tilesmith.lab.errors import with_explanation
from tilesmith.lab.expected import Call, Expected, is_in_place, names_of_changed, with_changed_inputs
from tilesmith.lab.races import RaceFinder
from tilesmith.lab.store_log import StoreLog, distinct_texts, explained
from tilesmith.spec import Inputs, SpecError, described, source_of
from tilesmith.toolchain import interpreter


def run(trial: Trial) -> list[Result]:
    """Check one trial: outputs, gradients, unchanged inputs, races, and further calls."""
    with exact_products(), uncompiled(trial.device):
        return list(_results(replace(trial, spec=with_changed_inputs(trial.spec))))


def _results(trial: Trial) -> Iterator[Result]:
    try:
        inputs, expected = prepared(trial)
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
        yield from further_calls(trial, inputs, expected, tried.outputs, races)


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
                self.failures = list(_misplaced(trial, call.absent, expected.absent))
                self.failures += _misshapen(trial, names, call.outputs, expected.plain.outputs)
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


def _misplaced(trial: Trial, absent: Sequence[int], wanted: Sequence[int]) -> Iterator[Result]:
    """Yield a failure for each result that is None and must not be, or the other way round."""
    for number in sorted(set(absent) ^ set(wanted)):
        what = "is None, but must be a tensor" if number in absent else "must be None"
        yield trial.failure("forward", f"result {number} {what}")


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
