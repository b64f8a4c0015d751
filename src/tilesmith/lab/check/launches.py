"""What `check` does with launches besides running them: try each configuration of autotuners, and run it twice.

launches = Launches()
results = [result for trial in chosen for result in launches.run(trial)]
results += [result for trial in launches.tuned(chosen) for result in launches.run_configurations(trial)]
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.check import Result, Trial, input_bytes, run
from tilesmith.lab.comparison import identical
from tilesmith.lab.errors import with_explanation
from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.tracing.effects import every_program
from tilesmith.lab.inspect.tracing.shadow_memory import named_tensors
from tilesmith.toolchain.compiler import (
    DEFAULT_TARGETS,
    CompileError,
    MiscompileError,
    accepted_options,
    needs_scratch_memory,
    require_compilable,
)
from tilesmith.toolchain.compiler.errors import first_line, first_reason
from tilesmith.toolchain.configurations import Configurations
from tilesmith.toolchain.interpreter import KernelError, Launched, Observer, Undefined, handing_over, interpret
from tilesmith.toolchain.launcher import has_scratch_memory

TARGET = DEFAULT_TARGETS[0]
# A dtype or an instruction that this target lacks, a full disk.
_NOT_THE_KERNEL = re.compile(
    r"this architecture|this target|no fault of the kernel|compute capability|\.target|PTX ISA", re.IGNORECASE
)


class Launches:
    """Performs the launches of one spec's trials.

    `is_file`: the spec comes from a user's file. Then each kernel must pass the compiler's front end, and loads whose
    masked lanes reach a result are named.
    """

    def __init__(self, *, is_file: bool) -> None:
        self._configurations = Configurations()
        self._failed: list[Trial] = []
        self._tried: set[int] = {0}  # numbers of configurations
        self._wrong: set[int] = set()
        self._refused = False
        self._repeated: set[Any] = set()  # kernels and configurations that ran twice in one launch
        self._changed_again: list[str] = []
        self._translation = _Translation() if is_file else None
        self._lanes = _MaskedLanes() if is_file else None

    def run(self, trial: Trial) -> list[Result]:
        """Check one trial, with the first configuration of each autotuner."""
        with handing_over(self) if trial.device == "cpu" else nullcontext():
            results = run(trial)
        if self._translation is not None:
            results += [trial.failure("compile", message) for message in self._translation.new_errors()]
        results += [trial.failure("autotuner", message) for message in self._changed_again]
        self._changed_again.clear()
        if not all(result.passed for result in results):
            self._failed.append(trial)
        return results

    def tuned(self, chosen: Sequence[Trial]) -> list[Trial]:
        """Return the trials for the other configurations: the largest case, and the largest one with an odd size.

        Empty without an autotuner. Cases that fail with the first configuration are left out.
        """
        if len(self._configurations.different()) == 1:
            return []
        first = [one for one in chosen if (one.dtype, one.layout) == (chosen[0].dtype, chosen[0].layout)]
        sized = sorted((one for one in first if not any(one is failed for failed in self._failed)), key=_size)
        largest, odd = sized[-1:], [one for one in sized if _is_odd(one)][-1:]
        return largest if odd == largest else largest + odd

    def run_configurations(self, trial: Trial) -> Iterator[Result]:
        """Check one trial with each further configuration of the autotuners."""
        for number in self._configurations.different()[1:]:
            if number in self._wrong:
                continue
            self._configurations.take(number)
            self._refused = False
            results = self.run(replace(trial, repeated=False, second_backward=False))
            if self._refused:
                self._wrong.add(number)
                continue  # a tl.static_assert of the kernel excludes it: so does Triton's autotuner
            if self._configurations.is_pruned:
                continue
            self._tried.add(number)
            if all(result.passed for result in results):
                yield from results
                continue
            self._wrong.add(number)
            name = self._configurations.names()[number]
            which = f"configuration {number + 1} of the autotuner ({_without_defaults(name)})"
            for result in results:
                yield result if result.passed else replace(result, message=f"{which}: {result.message}")

    def summary(self) -> str:
        """Return how many configurations ran, in words; nothing without an autotuner."""
        offered, different = len(self._configurations.names()), len(self._configurations.different())
        if offered == 1:
            return ""
        if len(self._tried) == offered:
            return f"all {offered} configurations of the autotuner ran"
        others = ", the others differ in warps and stages only" if len(self._tried) == different else ""
        return f"{len(self._tried)} of {offered} configurations of the autotuner ran{others}"

    def notes(self) -> list[str]:
        """Return what the user should know, in sentences; none of it makes the kernel wrong."""
        return [note for one in (self._translation, self._lanes) if one is not None for note in one.notes]

    def launch(self, launched: Launched) -> None:
        """Run in place of a launch."""
        if not launched.warmup:
            if self._translation is not None:
                self._translation.see(launched)
            try:
                if self._is_timed(launched):
                    self._changed_again += _changed_again(launched, self._interpret)
                else:
                    self._interpret(launched)
            except KernelError as error:
                self._refused = launched.tuner is not None and _is_static_assert(error.__cause__)
                raise

    def _interpret(self, launched: Launched) -> None:
        programs: Any = every_program(launched.grid)
        interpret(launched.kernel, launched.grid, launched.arguments, self._lanes, programs, launched.options)

    def _is_timed(self, launched: Launched) -> bool:
        """Return whether an autotuner would time this launch: the first of a kernel with this configuration."""
        if launched.tuner is None or len(launched.tuner.configs) == 1:
            return False
        key = launched.kernel.fn, str(launched.tuner.best_config)
        is_first = key not in self._repeated
        self._repeated.add(key)
        return is_first

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return self._configurations.chosen(candidates, kernel)


class _Translation:
    """Runs the compiler's front end for each kernel, with each set of dtypes and constants.

    It finds errors of types and shapes, which the interpreter does not have, and assignments that the front end loses,
    which the interpreter executes: 2 to 7 % of the time of a check. `notes`
    name kernels that were not translated for a reason outside the kernel.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self._errors: list[str] = []
        self._seen: set[Any] = set()
        self._known: set[str] = set()

    def new_errors(self) -> list[str]:
        """Return the errors since the last call."""
        errors, self._errors = self._errors, []
        return errors

    def see(self, launched: Launched) -> None:
        kernel = launched.kernel
        kinds = (_kind(launched.arguments[one.name], one.is_constexpr) for one in kernel.params)
        signature = (kernel.fn, *kinds)
        if signature in self._seen:
            return
        self._seen.add(signature)
        try:
            options = accepted_options(TARGET, {"enable_fp_fusion": True, **launched.options})
            ir_text = require_compilable(kernel, TARGET, launched.arguments, self._known, **options)
            if needs_scratch_memory(ir_text, TARGET) and not has_scratch_memory():
                place = f"{kernel.fn.__code__.co_filename}:{first_line(kernel)}"
                self._fail(f"{kernel.__name__} does not launch on {TARGET} ({place}): no allocator was set")
        except CompileError as error:
            reason = first_reason(error.message) or error.message
            if launched.tuner is not None and type(error.__cause__).__name__ == "CompileTimeAssertionFailure":
                return
            excused = "TRITON_INTERPRET" in os.environ or kernel.is_gluon() or _NOT_THE_KERNEL.search(error.message)
            if excused and not isinstance(error, MiscompileError):
                self._note(kernel, reason)
                return
            self._fail(f"{kernel.__name__} {error.fault} {TARGET} ({error.file}:{error.line}): {reason}")
        except Exception as error:  # of Triton itself
            self._note(kernel, f"{type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        if message not in self._seen:
            self._seen.add(message)
            self._errors.append(with_explanation(message))

    def _note(self, kernel: Any, reason: str) -> None:
        self.notes[f"{kernel.__name__} was not compiled for {TARGET}: {reason}"] = None


class _MaskedLanes(Observer):
    """Notes masked loads without `other` whose lanes reach a result. The interpreter and GPUs fill them with zeros."""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self._places: set[tuple[str, int]] = set()
        self._kernel = ""

    def launch(self, kernel: Any, grid: Program, arguments: Mapping[str, object]) -> None:
        self._kernel = kernel.__name__

    def undefined(self, undefined: Undefined, lanes: NDArray[np.bool_], program: Program) -> None:
        origin = undefined.origin
        if origin.cause == "masked" and (origin.file, origin.line) not in self._places:
            self._places.add((origin.file, origin.line))
            place = f"{self._kernel} ({origin.file}:{origin.line}), program {program}"
            self.notes[
                f"warning: {place}: masked lanes of this load of {origin.argument or 'memory'} have no value, and "
                "reach a result. Pass other= to tl.load, or discard the lanes with tl.where"
            ] = None


def _changed_again(launched: Launched, run: Callable[[Launched], None]) -> list[str]:
    """Run a launch twice, with the hooks of its autotuner. Return what the second run changes, in sentences."""
    tuner, configuration = launched.tuner, launched.tuner.best_config
    named = {**launched.arguments, **launched.options, **configuration.all_kwargs()}
    tuner.pre_hook(named)
    run(launched)
    first = [(name, tensor, tensor.clone()) for name, tensor in named_tensors(launched.arguments)]
    tuner.post_hook(named, exception=None)
    tuner.pre_hook(named, reset_only=True)
    if configuration.pre_hook is not None:
        configuration.pre_hook(named)
    run(launched)
    kernel = launched.kernel.__name__
    return [
        f"a second run of {kernel} changes {name} again: an autotuner runs a kernel many times in the first call; pass "
        f'reset_to_zero=["{name}"] or restore_value=["{name}"] to triton.autotune'
        for name, tensor, values in first
        if not identical(tensor, values)
    ]


def _kind(value: Any, constant: bool) -> str:
    """Return what a type error may depend on. Triton makes a constant of the integer 1."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if constant:
        return str(value)
    return str(value == 1) if isinstance(value, int) else type(value).__name__


def _is_static_assert(error: BaseException | None) -> bool:
    if not isinstance(error, AssertionError):
        return False
    return any("static_assert" in frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.line)


def _size(trial: Trial) -> int:
    return input_bytes(trial.spec, trial.case)


def _is_odd(trial: Trial) -> bool:
    return any(isinstance(size, int) and size > 1 and size % 2 for size in trial.case.sizes.values())


def _without_defaults(configuration: str) -> str:
    return ", ".join(part for part in configuration.split(", ") if not part.endswith(": None"))
