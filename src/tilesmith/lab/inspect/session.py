"""Takes over the launches of a program: traces each in the interpreter, compiles it for the targets, and writes down
what was found.

A launch that looks like one before is performed but not traced again. Where there is no GPU, the interpreter also has
to produce the results. Those of a large grid take long, so they are owed until the program uses them, which may be
never.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import torch

from tilesmith.hardware.devices import Device
from tilesmith.lab.inspect.findings.rules import Evidence, findings
from tilesmith.lab.inspect.metrics.compiled_targets import (
    aligned,
    compiled,
    compiled_or_error,
    device_of,
    facts_of,
    predicted,
    unaligned,
    widest_by_line,
)
from tilesmith.lab.inspect.metrics.launch_metrics import Metrics
from tilesmith.lab.inspect.metrics.measured_time import explained, measured_us
from tilesmith.lab.inspect.model import Kernel, Program, TargetFacts
from tilesmith.lab.inspect.running.tensor_tracker import Tensors, tensors_in
from tilesmith.lab.inspect.tracing.launch_signature import compile_look, constants_of, is_plain, look_of
from tilesmith.lab.inspect.tracing.shadow_memory import Shadows, named_tensors
from tilesmith.lab.inspect.tracing.trace import Trace, sample
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Binary, Target
from tilesmith.toolchain.interpreter import KernelError, Launched, interpret, launch_as_usual
from tilesmith.toolchain.interpreter.driver import CompiledStandIn, source_of
from tilesmith.toolchain.interpreter.host import HostCopies

FOLLOWED = 16  # programs whose operations are counted
SHOWN = 6  # programs kept in full
MOST_LOOKS = 6  # of one kernel; a program that runs through sizes shows the first ones
MOST_SUSPECTS = 6  # arguments; each takes a compilation to clear
SECTOR_BYTES = {"cuda": 32, "hip": 64}


class InspectError(Exception):
    """An inspection that was asked for in a way that cannot be; the message is one line for the user."""


@dataclass(frozen=True)
class Wishes:
    """What to look at and how closely."""

    targets: tuple[Target, ...] = DEFAULT_TARGETS
    programs: int | None = None  # how many to trace; None: as many as `seconds` allow
    seconds: float = 3.0  # to trace one launch
    config: str | None = None  # which of an autotuner's configurations: a number, or FIELD=VALUE,…
    kernels: tuple[str, ...] = ()  # names; all where empty
    device: str | None = None
    texts: bool = False  # keep the compiler's texts
    not_compiled: tuple[tuple[str, str], ...] = ()  # (kernel, target) whose compilation ended the process before


@dataclass
class _Owed:
    """Programs that have not run yet, of a launch whose results nobody has asked for."""

    launched: Launched
    programs: Iterator[Program]
    storages: set[int]


@dataclass
class Session:
    """One run of a program. `report` gets each kernel as soon as it is known, `about_to` what may end the process."""

    wishes: Wishes
    has_gpu: bool
    report: Callable[[int, Kernel], None] = lambda number, kernel: None
    about_to: Callable[[str, str], None] = lambda kernel, target: None
    kernels: list[Kernel] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = Tensors(self._before_use, pretend_gpu=not self.has_gpu)
        self._numbers: dict[Any, int] = {}
        self._looks: Counter[str] = Counter()
        self._binaries: dict[Any, Binary | str] = {}
        self._owed: list[_Owed] = []
        self.launches: Counter[int] = Counter()

    @property
    def sector_bytes(self) -> int:
        return SECTOR_BYTES[self.wishes.targets[0].backend]

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def launch(self, launched: Launched) -> Any:
        """In place of a launch; returns what a launch returns."""
        with torch._C.DisableTorchFunction():
            return self._launch(launched)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        """The first of an autotuner's configurations that compiles and fits, or the one that was asked for."""
        if self.wishes.config is not None:
            return _wished(self.wishes.config, candidates)
        if len(candidates) == 1:
            return candidates[0]
        for candidate in candidates:
            facts = self._facts_if_compiled(kernel, {**arguments, **candidate.all_kwargs()})
            if facts is None or (not facts.error and facts.blocks_per_multiprocessor != 0):
                return candidate
        return candidates[0]

    def settle(self, storages: set[int] | None = None) -> None:
        """Run what is owed, of these storages or all."""
        while self._owed and (storages is None or any(one.storages & storages for one in self._owed)):
            owed = self._owed.pop(0)  # in the order of the launches, as later ones may read what earlier ones write
            interpret(owed.launched.kernel, owed.launched.grid, owed.launched.arguments, None, owed.programs)  # type: ignore[arg-type]

    def _before_use(self, tensors: Sequence[torch.Tensor] | None) -> None:
        if self._owed:
            self.settle(None if tensors is None else set(_storages(tensors)))

    def _launch(self, launched: Launched) -> Any:
        if launched.warmup:
            return self._compiled_stand_in(launched)
        tensors = list(tensors_in(launched.arguments))
        self._before_use(tensors)
        number = self._number(launched)
        if number is None:
            result = self._perform(launched, _every_program(launched.grid))
            self.tensors.all_written(tensors)
            return result
        self.launches[number] += 1
        if self.launches[number] > 1:
            result = self._perform(launched, _every_program(launched.grid))
            self.tensors.all_written(tensors)
            return result
        return self._inspect(number, launched)

    def _number(self, launched: Launched) -> int | None:
        """The number of the kernel that this launch is one of; None where it is not looked at."""
        name = launched.kernel.__name__
        if 0 in launched.grid or (self.wishes.kernels and name not in self.wishes.kernels):
            return None
        look = look_of(launched)
        if look not in self._numbers:
            if self._looks[name] >= MOST_LOOKS:
                self.notes[f"{name} was launched with more sizes than {MOST_LOOKS}; only the first ones are shown"] = (
                    None
                )
                return None
            self._looks[name] += 1
            self._numbers[look] = len(self._numbers)
        return self._numbers[look]

    def _inspect(self, number: int, launched: Launched) -> Any:
        hosted = launched
        if self.has_gpu:
            copies = HostCopies()
            arguments = {name: copies.hosted(value) for name, value in launched.arguments.items()}
            hosted = replace(launched, arguments=arguments)
        originals = dict(named_tensors(launched.arguments))  # of which is known who wrote them
        shadows = Shadows(hosted.arguments, lambda name: self.tensors.written_bytes(originals[name]))
        programs = sample(launched.grid, FOLLOWED)
        trace = Trace(launched.grid, shadows, programs, programs[:1] + programs[1 : SHOWN - 1] + programs[-1:])
        rest, kernel_error = self._traced(hosted, trace, programs)
        measured = None
        result: Any = None
        if self.has_gpu:
            measured = measured_us(launched)
            result = launch_as_usual(launched)
        elif kernel_error is None:
            self._owe(launched, rest)
        if len(trace.traced) < prod(launched.grid):
            self.tensors.all_written(list(tensors_in(launched.arguments)))
        kernel = self._described(hosted, trace, kernel_error, measured)
        self.kernels.append(kernel)
        self.report(number, kernel)
        return result if result is not None else self._compiled_stand_in(launched)

    def _traced(
        self, launched: Launched, trace: Trace, programs: list[Program]
    ) -> tuple[Iterator[Program], str | None]:
        """Traces the sample, then others while there is time. Returns those that have not run, or why it failed."""
        chosen = set(programs)
        rest = (program for program in _every_program(launched.grid) if program not in chosen)
        wished = self.wishes.programs
        deadline = time.thread_time() + self.wishes.seconds

        def in_time() -> Iterator[Program]:
            yield from programs if wished is None else programs[: max(1, wished)]
            while (len(trace.traced) < wished) if wished is not None else (time.thread_time() < deadline):
                program = next(rest, None)
                if program is None:
                    return
                yield program

        try:
            interpret(launched.kernel, launched.grid, launched.arguments, trace, in_time())  # type: ignore[arg-type]
        except KernelError as error:
            return iter(()), str(error)
        if wished is not None and wished < len(programs):
            left = [program for program in programs if program not in trace.traced]
            return (program for group in (left, rest) for program in group), None
        return rest, None

    def _owe(self, launched: Launched, programs: Iterator[Program]) -> None:
        first = next(programs, None)
        if first is None:
            return

        def remaining() -> Iterator[Program]:
            yield first
            yield from programs

        self._owed.append(_Owed(launched, remaining(), set(_storages(tensors_in(launched.arguments)))))

    def _perform(self, launched: Launched, programs: Iterator[Program]) -> Any:
        if self.has_gpu:
            return launch_as_usual(launched)
        self._owe(launched, programs)
        return self._compiled_stand_in(launched)

    def _described(self, launched: Launched, trace: Trace, kernel_error: str | None, measured: float | None) -> Kernel:
        kernel = launched.kernel
        file, line, source = source_of(kernel)
        binaries = {str(target): self._binary(launched, target) for target in self.wishes.targets}
        first = next((one for one in binaries.values() if isinstance(one, Binary)), None)
        metrics = Metrics(launched, trace, first, self.sector_bytes)
        work = metrics.work()
        programs = prod(launched.grid)
        targets = {}
        for target in self.wishes.targets:
            device = self._device(str(target))
            facts = facts_of(target, binaries[str(target)], programs, device, file, self.wishes.texts)
            targets[str(target)] = predicted(facts, work, device)
        memory_bound = _is_memory_bound(list(targets.values()))
        device = self._device(str(self.wishes.targets[0]))
        widths, misaligned = self._if_aligned(launched, metrics, first, file)
        evidence = Evidence(launched, trace, metrics, targets, widths, misaligned, device, kernel_error)
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
            sampled=_sampled(len(trace.traced), programs),
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
            measured_us=measured,
            measured_note=explained(measured, targets[str(self.wishes.targets[0])]) if measured else None,
        )

    def _device(self, target: str) -> Device | None:
        from tilesmith.hardware.devices import device as named

        wished = named(self.wishes.device) if self.wishes.device else None
        return wished if wished is not None and wished.architecture.target == target else device_of(target)

    def _binary(self, launched: Launched, target: Target) -> Binary | str:
        key = (compile_look(launched), target)
        if key not in self._binaries:
            name = launched.kernel.__name__
            if (name, str(target)) in self.wishes.not_compiled:
                self._binaries[key] = f"{name} does not compile for {target}: the compiler itself crashes"
            else:
                self.about_to(name, str(target))
                self._binaries[key] = compiled_or_error(launched, target)
                self.about_to("", "")
        return self._binaries[key]

    def _if_aligned(
        self, launched: Launched, metrics: Metrics, binary: Binary | None, file: str
    ) -> tuple[dict[int, int], dict[str, str]]:
        """How wide the accesses would be, could the compiler count on aligned arguments, and which ones stand in the
        way; nothing where none does."""
        suspects = unaligned(launched)
        narrow = any(0 < (access.vector_bytes or 0) < 16 for access in metrics.accesses)
        if binary is None or not narrow or not suspects:
            return {}, {}

        def widths(changed: Launched) -> dict[int, int]:
            compiled = compiled_or_error(changed, self.wishes.targets[0])
            return widest_by_line(compiled, file) if isinstance(compiled, Binary) else {}

        best = widths(aligned(launched))
        if not any(width > widest_by_line(binary, file).get(line, width) for line, width in best.items()):
            return {}, {}
        if 1 < len(suspects) <= MOST_SUSPECTS:
            guilty = {name: what for name, what in suspects.items() if widths(aligned(launched, but=name)) != best}
            suspects = guilty or suspects
        return best, suspects

    def _compiled_stand_in(self, launched: Launched) -> CompiledStandIn:
        def launch(grid: Sequence[int], arguments: dict[str, Any]) -> Any:
            whole = (*grid, 1, 1)[:3]
            return self.launch(Launched(launched.kernel, whole, arguments, launched.options))  # type: ignore[arg-type]

        return CompiledStandIn(
            launched.kernel, launched.arguments, lambda: compiled(launched, self.wishes.targets[0]), launch
        )

    def _facts_if_compiled(self, kernel: Any, named: dict[str, Any]) -> TargetFacts | None:
        """What a configuration would be on the first target; None where its arguments are not all known yet."""
        from tilesmith.toolchain.compiler import jit_function

        function = jit_function(kernel)
        arguments = {name: value for name, value in named.items() if name in function.arg_names}
        if any(name not in arguments for name in function.arg_names):
            return None
        options = {
            name: value for name, value in named.items() if name not in arguments and name not in ("grid", "warmup")
        }
        launched = Launched(function, (1, 1, 1), arguments, options)
        target = self.wishes.targets[0]
        with torch._C.DisableTorchFunction():
            return facts_of(target, self._binary(launched, target), 1, None, "", texts=False)


def _every_program(grid: Program) -> Iterator[Program]:
    return ((x, y, z) for z, y, x in product(*map(range, reversed(grid))))


def _storages(tensors: Any) -> Iterator[int]:
    for tensor in tensors:
        try:
            yield tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            continue


def _sampled(traced: int, programs: int) -> str:
    if traced == programs:
        return "all programs"
    return f"{traced:,} of {programs:,} programs: the first, the last, the corners of the grid, and others between"


def _is_memory_bound(targets: Sequence[TargetFacts]) -> bool:
    for facts in targets:
        if facts.predicted_memory_us is not None and facts.predicted_compute_us is not None:
            return facts.predicted_memory_us >= facts.predicted_compute_us
    return True


def _wished(text: str, candidates: Sequence[Any]) -> Any:
    """The configuration that --config names."""
    if text.isdecimal():
        if int(text) >= len(candidates):
            raise InspectError(f"--config {text}: there are {len(candidates)} configurations, numbered from 0")
        return candidates[int(text)]
    wanted = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    for candidate in candidates:
        known = {name: str(value) for name, value in candidate.all_kwargs().items()}
        if wanted and all(known.get(name.strip()) == value.strip() for name, value in wanted.items()):
            return candidate
    offered = "; ".join(f"{number}: {candidate}" for number, candidate in enumerate(candidates))
    raise InspectError(f"--config {text!r} is none of the configurations ({offered})")
