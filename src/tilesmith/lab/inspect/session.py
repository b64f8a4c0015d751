"""Replace the launches of a program: trace each in the interpreter, compile it for the targets, gather the findings.

A launch with the signature of an earlier one runs, but is not traced again. Without a GPU the interpreter also computes
the results: those of programs outside the sample only when the program reads them (`running/deferred_programs.py`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.hardware.devices import Device
from tilesmith.hardware.devices import device as named_device
from tilesmith.lab.inspect.configurations import Configurations
from tilesmith.lab.inspect.findings.all_findings import findings
from tilesmith.lab.inspect.findings.correctness import late_out_of_bounds, unwritten_result
from tilesmith.lab.inspect.findings.evidence import Evidence
from tilesmith.lab.inspect.metrics.alignment import Alignment, alignment_of
from tilesmith.lab.inspect.metrics.compiled_targets import (
    compiled,
    compiled_or_error,
    device_of,
    facts_of,
    is_memory_bound,
    with_prediction,
)
from tilesmith.lab.inspect.metrics.launch_metrics import WIDEST_ACCESS_BYTES, Metrics
from tilesmith.lab.inspect.metrics.measured_time import explain_time, measured_us
from tilesmith.lab.inspect.metrics.predicted_time import with_predicted_time
from tilesmith.lab.inspect.model import Finding, Kernel, Program, TargetFacts
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running.cuda_graphs import noted
from tilesmith.lab.inspect.running.deferred_programs import DeferredPrograms
from tilesmith.lab.inspect.running.tensor_tracker import TensorTracker, tensors_in
from tilesmith.lab.inspect.running.written_memory import WrittenBytes
from tilesmith.lab.inspect.tracing.effects import Effects, every_program, first_programs, sampled_in_words
from tilesmith.lab.inspect.tracing.launch_signature import (
    compile_signature,
    constants_of,
    is_plain,
    launch_signature,
)
from tilesmith.lab.inspect.tracing.shadow_memory import ShadowMemory, named_tensors
from tilesmith.lab.inspect.tracing.suspects import suspects
from tilesmith.lab.inspect.tracing.trace import Trace
from tilesmith.toolchain.benchmarks import is_benchmarking
from tilesmith.toolchain.compiler import Binary, Target
from tilesmith.toolchain.interpreter import KernelError, Launched, OutOfBounds, interpret, launch_as_usual
from tilesmith.toolchain.interpreter.driver import CompiledStandIn, source_of
from tilesmith.toolchain.interpreter.host import HostCopies

SAMPLED_PROGRAMS = 16  # programs that are traced first, and whose operations are counted
LEAST_PROGRAMS = 2  # of these, the first and the last of the grid, are traced whatever the time
SHOWN_PROGRAMS = 6  # programs whose addresses and operations are all kept
MOST_SIGNATURES = 6  # of one kernel; a program that loops over sizes shows the first ones
SECTOR_BYTES = {"cuda": 32, "hip": 64}


@dataclass
class Session:
    """One run of a program.

    `report` receives each kernel as soon as it is described. `before_compiling` receives the kernel's name and the
    target, since a crash of the compiler ends the process; after the compilation it receives empty strings.
    """

    options: InspectOptions
    has_gpu: bool
    report: Callable[[int, Kernel], None] = lambda number, kernel: None
    before_compiling: Callable[[str, str], None] = lambda kernel, target: None
    kernels: list[Kernel] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = TensorTracker(
            self._before_use, not self.has_gpu, self._unwritten_read, lambda *call: self._deferred.add_call(*call)
        )
        self.launches: Counter[int] = Counter()
        self._numbers: dict[Any, int] = {}
        self._signatures: Counter[str] = Counter()
        self._binaries: dict[Any, Binary | str] = {}
        self._deferred = DeferredPrograms(self._marking_written)
        self._writers: dict[int, tuple[int, str, str, int]] = {}  # by storage: kernel number, argument, file and line
        self._effects: dict[int, Effects] = {}
        target = self.options.first_target
        self._configurations = Configurations(
            self.options.config, target, self._device(str(target)), self.has_gpu, self._binary
        )
        self._not_interpreted: set[int | str] = set()  # kernels that fail in the interpreter, by number and by name
        self._unwritten_reported: defaultdict[int, set[str]] = defaultdict(set)

    @property
    def sector_bytes(self) -> int:
        return SECTOR_BYTES[self.options.first_target.backend]

    def launch(self, launched: Launched) -> Any:
        """Run in place of a launch; return what the launch would return."""

        def launch() -> Any:
            with torch._C.DisableTorchFunction(), self.tensors.inside_call(on_gpu=False):
                return self._launch(launched)

        return noted(launch)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the autotuner's configuration that a launch takes."""
        return self._configurations.chosen(candidates, kernel, arguments)

    def note(self, text: str) -> None:
        """Keep a sentence for the report."""
        self.notes[text] = None

    def state(self) -> tuple[int, tuple[int, int, int]]:
        """Return how many results were put off, and what changes when the program computes anything else."""
        return self._deferred.added, (self.tensors.computed, len(self.kernels), self._deferred.readable())

    def run_deferred(self) -> None:
        """Run every program that has not run yet."""
        self._deferred.run_all()

    def _before_use(self, tensors: Sequence[torch.Tensor] | None) -> None:
        if tensors is None:
            if not is_benchmarking():
                self._deferred.run_all()
        else:
            self._deferred.run_for(tensors)

    def _launch(self, launched: Launched) -> Any:
        if launched.warmup:
            return self._compiled_stand_in(launched)
        tensors = list(tensors_in(launched.arguments))
        number = self._number(launched)
        if number is not None:
            self.launches[number] += 1
            if self.launches[number] == 1:
                self._before_use(tensors)
                return self._inspect(number, launched)
        if (launched.kernel.__name__ if number is None else number) in self._not_interpreted:
            self.tensors.all_written(tensors)
            return self._compiled_stand_in(launched)
        return self._run(launched, self._effects.get(number) if number is not None else None)

    def _number(self, launched: Launched) -> int | None:
        """Return the number of the kernel that this launch belongs to; None where the launch is not inspected."""
        name = launched.kernel.__name__
        if self.options.kernels and name not in self.options.kernels:
            return None
        if 0 in launched.grid:
            self.note(f"the grid of {name} is empty, so no program runs")
            return None
        signature = launch_signature(launched)
        if signature not in self._numbers:
            if self._signatures[name] >= MOST_SIGNATURES:
                self.note(f"{name} was launched with more than {MOST_SIGNATURES} sizes; only the first ones are shown")
                return None
            self._signatures[name] += 1
            self._numbers[signature] = len(self._numbers)
        return self._numbers[signature]

    def _inspect(self, number: int, launched: Launched) -> Any:
        hosted = launched
        if self.has_gpu:
            copies = HostCopies()
            arguments = {name: copies.hosted(value) for name, value in launched.arguments.items()}
            hosted = replace(launched, arguments=arguments)
        originals = dict(named_tensors(launched.arguments))  # the tracker knows these, not their copies
        shadows = ShadowMemory(hosted.arguments, lambda name: self.tensors.written_bytes(originals[name]))
        programs = first_programs(launched, SAMPLED_PROGRAMS)
        shown = programs[:1] + programs[1 : SHOWN_PROGRAMS - 1] + programs[-1:]
        trace = Trace(launched.grid, shadows, programs, shown, self.options.precision)
        rest, kernel_error = self._traced(hosted, trace, programs)
        measured = None
        result: Any = None
        if self.has_gpu:
            measured = measured_us(launched)
            result = launch_as_usual(launched)
        effects = self._effects[number] = Effects.of(trace)
        if not self.has_gpu and kernel_error is None:
            self._defer(launched, rest, effects)
        if kernel_error is not None and not self.has_gpu:
            self._not_interpreted |= {number, launched.kernel.__name__}
        if self.has_gpu or kernel_error is not None:
            self.tensors.all_written(list(tensors_in(launched.arguments)))
        self._note_writers(number, launched, trace)
        kernel = self._described(hosted, trace, kernel_error, measured)
        self.kernels.append(kernel)
        self.report(number, kernel)
        return result if result is not None else self._compiled_stand_in(launched)

    def _traced(
        self, launched: Launched, trace: Trace, programs: list[Program]
    ) -> tuple[Iterator[Program], str | None]:
        """Trace the sample, then more programs while time is left. Return the untraced programs and the error."""
        chosen = set(programs)
        rest = (program for program in every_program(launched.grid) if program not in chosen)
        most = self.options.programs
        deadline = time.process_time() + self.options.seconds  # partitions of Gluon kernels have threads

        def in_time() -> Iterator[Program]:
            for number, sampled in enumerate(programs if most is None else programs[: max(1, most)]):
                if most is None and number >= LEAST_PROGRAMS and time.process_time() > deadline:
                    return
                yield sampled
            while (len(trace.traced) < most) if most is not None else (time.process_time() < deadline):
                program = next(rest, None)
                if program is None:
                    return
                yield program

        try:
            interpret(launched.kernel, launched.grid, launched.arguments, trace, in_time())  # type: ignore[arg-type]
        except KernelError as error:
            return iter(()), str(error)
        untraced = [program for program in programs if program not in trace.traced]
        if len(trace.traced) == prod(launched.grid) or not self.options.suspects:
            return chain(untraced, rest), None
        return self._with_suspects(launched, trace, chain(untraced, rest))

    def _with_suspects(
        self, launched: Launched, trace: Trace, rest: Iterator[Program]
    ) -> tuple[Iterator[Program], str | None]:
        """Trace the untraced programs whose addresses are suspicious. Return the other untraced programs."""
        effects = Effects.of(trace)
        atomics = any(place.kind == "atomic" for place in trace.sites)
        found = suspects(launched, effects.written or frozenset(), atomics)
        trace.covered = (
            "the addresses of all programs checked" if found.complete else f"no more, because {found.reason}"
        )
        chosen = [program for program in found.programs if program not in trace.traced]
        try:
            interpret(launched.kernel, launched.grid, launched.arguments, trace, chosen)
        except KernelError as error:
            return iter(()), str(error)
        taken = set(chosen)
        return (program for program in rest if program not in taken), None

    def _marking_written(self, launched: Launched) -> WrittenBytes:
        """Return an observer that marks what the programs of a launch write."""
        tensors = list(tensors_in(launched.arguments))
        self.tensors.settle(tensors)
        return WrittenBytes(tensors, self.tensors.written_bytes, self._late_out_of_bounds)

    def _late_out_of_bounds(self, error: OutOfBounds) -> None:
        """Add a finding to the kernel whose untraced program goes out of bounds."""
        access = error.access
        for number, kernel in enumerate(self.kernels):
            said = {one.kind for one in kernel.findings}
            if kernel.name == access.kernel and not said & {"out-of-bounds", "overflow"}:
                self._add_finding(number, late_out_of_bounds(error))

    def _note_writers(self, number: int, launched: Launched, trace: Trace) -> None:
        originals = dict(named_tensors(launched.arguments))
        for place in trace.sites:
            if place.kind != "load" and place.argument in originals:
                storage = originals[place.argument].untyped_storage()._cdata
                self._writers[storage] = (number, place.argument, place.file, place.line)

    def _unwritten_read(self, tensor: torch.Tensor, elements: NDArray[np.bool_], call: str) -> None:
        """Add a finding to the kernel that should have written these elements."""
        with torch._C.DisableTorchFunction():
            writer = self._writers.get(self.tensors.original_storage(tensor))
            if writer is None or writer[0] >= len(self.kernels):
                return
            number, argument, file, line = writer
            kernel = self.kernels[number]
            finding = unwritten_result(kernel, (argument, file, line), elements, call)
            if argument not in self._unwritten_reported[number]:
                self._unwritten_reported[number].add(argument)
                self._add_finding(number, finding)

    def _add_finding(self, number: int, finding: Finding) -> None:
        kernel = self.kernels[number]
        self.kernels[number] = replace(kernel, findings=(finding, *kernel.findings))
        self.report(number, self.kernels[number])

    def _run(self, launched: Launched, effects: Effects | None) -> Any:
        """Run a launch that is not traced. `effects` are those of an equal launch, if there was one."""
        if self.has_gpu:
            self.tensors.all_written(list(tensors_in(launched.arguments)))
            return launch_as_usual(launched)
        self._defer(launched, every_program(launched.grid), effects or Effects.unknown(tensors_in(launched.arguments)))
        return self._compiled_stand_in(launched)

    def _defer(self, launched: Launched, programs: Iterator[Program], effects: Effects) -> None:
        if is_benchmarking() and effects.only_floats:  # integers may be indices of a later launch
            self.tensors.all_written(list(tensors_in(launched.arguments)))
            self._deferred.added += 1  # and dropped
            return
        self._deferred.add(launched, programs, effects.written)
        if effects.reaches_others:  # tensors behind a table of addresses may be gone later
            self._deferred.run_all()

    def _described(self, launched: Launched, trace: Trace, kernel_error: str | None, measured: float | None) -> Kernel:
        kernel = launched.kernel
        file, line, source = source_of(kernel)
        binaries = {str(target): self._binary(launched, target) for target in self.options.targets}
        first = next((one for one in binaries.values() if isinstance(one, Binary)), None)
        metrics = Metrics(launched, trace, first, self.sector_bytes)
        programs = prod(launched.grid)
        targets = self._target_facts(binaries, metrics, programs, file)
        memory_bound = is_memory_bound(list(targets.values()))
        evidence = Evidence(
            launched,
            trace,
            metrics,
            targets,
            self._alignment(launched, metrics, first, file),
            self._device(str(self.options.first_target)),
            kernel_error,
            frozenset(map(str, self.options.deciding)),
            self.tensors.is_on_gpu,
        )
        flops = metrics.flops()
        return Kernel(
            name=kernel.__name__,
            file=file,
            line=line,
            source=source,
            launches=1,
            grid=launched.grid,
            programs=programs,
            programs_traced=len(trace.traced),
            sampled=sampled_in_words(len(trace.traced), launched, trace.covered),
            constants=constants_of(launched),
            options={name: value for name, value in launched.options.items() if is_plain(value)},
            arguments=metrics.arguments(),
            accesses=tuple(metrics.accesses),
            flops=flops,
            flops_by_kind=metrics.flops_by_kind(),
            arithmetic_intensity=flops / metrics.unique_bytes if metrics.unique_bytes else None,
            bytes=metrics.bytes,
            unique_bytes=metrics.unique_bytes,
            bound="memory" if memory_bound else "compute",
            targets=targets,
            lines=metrics.lines(memory_bound),
            program_facts=metrics.program_facts(),
            findings=findings(evidence),
            precision=trace.numbers.line_errors(),
            configurations=self._configurations.table(launched, metrics.work()),
            is_tuned=launched.tuner is not None,
            measured_us=measured,
            measured_note=explain_time(measured, targets[str(self.options.first_target)]) if measured else None,
        )

    def _target_facts(
        self, binaries: Mapping[str, Binary | str], metrics: Metrics, programs: int, file: str
    ) -> dict[str, TargetFacts]:
        work = metrics.work()
        targets = {}
        for target in self.options.targets:
            device = self._device(str(target))
            facts = facts_of(target, binaries[str(target)], programs, device, file, self.options.texts)
            facts = with_prediction(facts, work, device)
            moved = metrics.accesses, programs, metrics.unique_bytes
            targets[str(target)] = with_predicted_time(facts, binaries[str(target)], *moved, device)
        return targets

    def _device(self, target: str) -> Device | None:
        """Return the device to predict for: the one from the options if it has this target."""
        chosen = named_device(self.options.device) if self.options.device else None
        return chosen if chosen is not None and chosen.architecture.target == target else device_of(target)

    def _binary(self, launched: Launched, target: Target) -> Binary | str:
        key = (compile_signature(launched), target)
        with suppress(RuntimeError):  # Triton raises once for a helper without @triton.jit; the compiler names its line
            hash(key)
        if key not in self._binaries:
            name = launched.kernel.__name__
            if (name, str(target)) in self.options.not_compiled:
                self._binaries[key] = f"{name} does not compile for {target}: the compiler crashes"
            else:
                self.before_compiling(name, str(target))
                self._binaries[key] = compiled_or_error(launched, target)
                self.before_compiling("", "")
        return self._binaries[key]

    def _alignment(self, launched: Launched, metrics: Metrics, binary: Binary | None, file: str) -> Alignment:
        narrow = any(0 < (access.vector_bytes or 0) < WIDEST_ACCESS_BYTES for access in metrics.accesses)
        if binary is None or not narrow or not self.options.alignment:
            return Alignment({}, {})
        return alignment_of(launched, binary, self.options.first_target, file)

    def _compiled_stand_in(self, launched: Launched) -> CompiledStandIn:
        def launch(grid: Sequence[int], arguments: dict[str, Any]) -> Any:
            three_dimensional = (*grid, 1, 1)[:3]
            return self.launch(Launched(launched.kernel, three_dimensional, arguments, launched.options))  # type: ignore[arg-type]

        return CompiledStandIn(
            launched.kernel, launched.arguments, lambda: compiled(launched, self.options.first_target), launch
        )
