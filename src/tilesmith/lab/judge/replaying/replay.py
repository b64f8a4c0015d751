"""Run a tape: rebuilt kernels in the interpreter, PyTorch's operators from a list. Report faults and writers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.inspect.findings.correctness import explained
from tilesmith.lab.inspect.tracing.shadow_memory import ShadowMemory, named_tensors
from tilesmith.lab.inspect.tracing.trace import Trace
from tilesmith.lab.judge.recording import plain_values
from tilesmith.lab.judge.recording.plain_values import NotPlain
from tilesmith.lab.judge.replaying.memory import FILL, KERNEL, NOBODY, PYTORCH, BadTape
from tilesmith.lab.judge.replaying.operators import kind_of, operator_named
from tilesmith.lab.judge.replaying.tuner_trial import TunerTrial
from tilesmith.lab.store_log import StoreLog
from tilesmith.toolchain.interpreter import KernelError, Launched, Observer, OutOfBounds, interpret, interpreting
from tilesmith.toolchain.interpreter.running import UNKNOWN
from tilesmith.toolchain.interpreter.values.other_order import in_other_order
from tilesmith.toolchain.portable import (
    LAUNCH_OPTIONS,
    KernelRefused,
    NotPortable,
    RebuiltKernels,
    compares_layouts,
    depends_on_types,
)
from tilesmith.toolchain.portable.tensor_cores import exact_products
from tilesmith.toolchain.portable.values import Decoder

MOST_PROGRAMS = 1 << 20
MOST_FAULTS = 8
_FAR_APART = 1 << 40  # more elements than a storage has
_UNSUPPORTED = (UNKNOWN, "Unsupported data type")  # the second is what Triton's interpreter says of atomics


class _Stores(StoreLog):
    """A log of stores that leaves faults to the trace."""

    def out_of_bounds(self, error: OutOfBounds) -> None:
        pass


class Stopped(Exception):
    """The replay cannot go on. `facts` is the fault in the form of a reason."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts["message"])
        self.facts = facts


@dataclass(frozen=True)
class _Flow:
    """Which storages a step reads, writes and replaces as a whole; for a launch, whether it only copies or fills."""

    reads: set[int]
    writes: set[int]
    replaces: set[int]
    only_copies: bool | None


class Replay:
    """One run of a tape. `allow_any` lets PyTorch compute; else its operators may only move and fill."""

    most_programs = MOST_PROGRAMS

    def __init__(
        self, tape: Mapping[str, Any], memory: Any, folder: Path, *, allow_any: bool,
        kernels: RebuiltKernels | None = None, output_sizes: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self.memory = memory
        self._output_sizes = {tuple(one) for one in output_sizes}
        self.stores = _Stores()
        self.faults: list[dict[str, Any]] = []
        self.has_false_hints = False
        self.digests: dict[str, str] = {}
        self.reordering: list[str] = []  # operators that moved data into another order
        self._flows: list[_Flow] = []
        self._backwards = self._other_order = False
        self._stale: Sequence[Sequence[torch.Tensor]] = ()
        self.results: list[list[torch.Tensor]] = []  # of each launch, where PyTorch may compute too
        self._tape = tape
        self._allow_any = allow_any
        self._kernels = kernels or RebuiltKernels(tape["kernels"], folder)
        self._decoder = Decoder(memory.tensor, self._kernels.kernel)

    def run(self, *, tf32: bool, backwards: bool = False, stale: Sequence[Sequence[torch.Tensor]] = ()) -> None:
        """Run every step, with `backwards` the last program of a launch first, and reductions in another order.

        With `stale`, results of another run take the place of what kernels store. Raises Stopped.
        """
        self._other_order = backwards
        self._stale = stale
        # A kernel that waits in a loop may wait for programs before it, which start first on a GPU.
        waits = any("while" in str(one.get("text")) for one in self._tape["kernels"])
        self._backwards = backwards and not waits
        for step in self._tape["steps"]:
            try:
                if "kernel" in step:
                    self._launch(self.launched(step), step, tf32)
                elif "operator" in step and "opaque" not in step:
                    self._operate(step)
                else:
                    raise Stopped(fault("not-portable", f"{step.get('opaque') or 'a step'} cannot be replayed", step))
            except (BadTape, NotPlain, NotPortable, LookupError, KeyError, TypeError, ValueError) as error:
                raise Stopped(fault("not-portable", f"{error} cannot be replayed", step)) from None

    def launched(self, step: Mapping[str, Any]) -> Launched:
        """Return the launch of a step, with the kernel rebuilt from its text."""
        try:
            kernel = self._kernels.kernel(step["kernel"])
        except KernelRefused as error:
            description = self._kernels.descriptions[step["kernel"]]
            place = {"file": description["file"], "line": int(description["line"]) + error.line - 1}
            message = f"kernel {str(description['name'])[:60]} uses {error}"
            raise Stopped({**fault("not-a-kernel", message, step), **place}) from None
        other = next((str(name) for name in step["options"] if name not in LAUNCH_OPTIONS), None)
        if other is not None:
            message = f"kernel {kernel.__name__} is launched with {other[:60]}, which changes what is compiled"
            raise Stopped(fault("launch-option", message, step))
        grid = [int(size) for size in step["grid"]]
        if len(grid) != 3 or any(size < 0 for size in grid) or grid[0] * grid[1] * grid[2] > self.most_programs:
            raise BadTape(f"a grid of {str(grid)[:60]}")
        arguments = {str(name): self._decoder.value(value) for name, value in step["arguments"].items()}
        return Launched(kernel, (grid[0], grid[1], grid[2]), arguments, dict(step["options"]))

    def _launch(self, launched: Launched, step: Mapping[str, Any], tf32: bool) -> None:
        texts = [str(one["text"]) for one in self._kernels.descriptions if not one.get("constexpr")]
        asks = "the type of a value" if any(map(depends_on_types, texts)) else ""
        if launched.kernel.is_gluon() and compares_layouts(texts):
            asks = "the layout of a value"
        if asks:
            message = f"{launched.kernel.__name__} asks for {asks}, which differs between interpreter and GPU"
            raise Stopped(fault("needs-gpu", message, step))
        numbers = {
            name: self.memory.number_at(tensor.untyped_storage().data_ptr())
            for name, tensor in named_tensors(launched.arguments)
        }

        def written(name: str) -> Any:
            number = numbers.get(name)
            return None if number is None else self.memory.written_bytes(number)

        shadows = ShadowMemory(launched.arguments, written)
        trace = Trace(launched.grid, shadows, (), ())
        try:
            with exact_products() if tf32 else nullcontext(), in_other_order() if self._other_order else nullcontext():
                tuned = step.get("tuned") if self._other_order else None
                tried = TunerTrial(launched, tuned, self._interpret) if tuned else None
                with interpreting(self.stores):
                    self._interpret(launched, trace)
        except KernelError as error:
            unsupported = isinstance(error.__cause__, NotImplementedError) or any(
                one in str(error) for one in _UNSUPPORTED
            )
            kind = "needs-gpu" if unsupported else "kernel-error"
            raise Stopped(fault(kind, str(error), step)) from None
        self._note_faults(trace, launched)
        self.faults += [{**fault(step=step, **one), "program": []} for one in tried.faults()] if tried else []
        self._flows.append(self._launch_flow(launched, shadows))
        for start, shadow in shadows.all.items():
            number = self.memory.number_at(start)
            if number is not None:
                touched = torch.from_numpy((shadow.writer != 0) | (shadow.updater != 0))
                spread = touched.repeat_interleave(shadow.granule)[: self.memory.writers[number].numel()]
                self.memory.writers[number][: spread.numel()][spread] = KERNEL
        if self._allow_any:
            self._exchange_results(launched, shadows)

    def _interpret(self, launched: Launched, observer: Observer) -> None:
        programs: Any = _every_program(launched.grid, backwards=self._backwards)
        interpret(launched.kernel, launched.grid, launched.arguments, observer, programs, launched.options)

    def _exchange_results(self, launched: Launched, shadows: ShadowMemory) -> None:
        """Note what a launch stored; then put the results of another run in its place."""
        stored = []
        for _, one in named_tensors(launched.arguments):
            shadow = shadows.all.get(one.untyped_storage().data_ptr())
            if shadow is not None and (shadow.writer.any() or shadow.updater.any()):
                stored.append(one)
        self.results.append([one.clone() for one in stored])
        if self._stale:
            for one, other in zip(stored, self._stale[len(self.results) - 1], strict=True):
                one.copy_(other)

    def contributing(self, outputs: Sequence[Any]) -> list[bool]:
        """Return, for each launch that the outputs depend on, whether it only copies or fills."""
        needed = {reference[0] for reference in outputs}
        found = []
        for flow in reversed(self._flows):
            if flow.writes & needed:
                needed = (needed - flow.replaces) | flow.reads
                if flow.only_copies is not None:
                    found.append(flow.only_copies)
        return found

    def _launch_flow(self, launched: Launched, shadows: ShadowMemory) -> _Flow:
        reads, writes = set(), set()
        for start, shadow in shadows.all.items():
            number = self.memory.number_at(start)
            if number is not None:
                if shadow.reader.any() or shadow.updater.any():
                    reads.add(number)
                if shadow.writer.any() or shadow.updater.any():
                    writes.add(number)
        return _Flow(reads, writes, set(), _only_copies(launched, shadows))

    def _operator_flow(self, step: Mapping[str, Any], name: str, mutable: bool) -> _Flow:
        """Return what an operator reads and writes. A result that fills its storage replaces all of it."""
        writes = {reference[0] for reference in step["results"]}
        overwritten = name.split(".")[0] in ("aten::copy_", "aten::fill_", "aten::zero_")
        targets = step["args"][:1] if overwritten else []
        out = step["kwargs"].get("out")
        sources = [one for one in [*step["args"], *step["kwargs"].values()] if one not in targets and one is not out]
        reads: set[int] = set()

        def note(reference: Any) -> torch.Tensor:
            reads.add(reference[0])
            found: torch.Tensor = self.memory.tensor(reference)
            return found

        for one in sources:
            plain_values.decode(one, note)
        whole = {
            reference[0]
            for reference in step["results"]
            if self.memory.tensor(reference).nbytes >= self.memory.contents[reference[0]].numel()
        }
        replaces = whole - reads if overwritten or out is not None or not mutable else set()
        return _Flow(reads, writes, replaces, None)

    def _note_faults(self, trace: Trace, launched: Launched) -> None:
        self.has_false_hints |= bool(trace.sanitizer.hints)
        for incident in trace.sanitizer.incidents():
            kind, severity, message, advice = explained(trace, incident)
            if severity == "error" and len(self.faults) < MOST_FAULTS:
                self.faults.append(
                    {
                        "kind": kind,
                        "message": f"{launched.kernel.__name__}: {message}",
                        "advice": advice,
                        "file": Path(incident.file).name,
                        "line": incident.line,
                        "program": list(incident.program),
                    }
                )

    def _operate(self, step: Mapping[str, Any]) -> None:
        name = step["operator"]
        kind = kind_of(step)
        if kind == "compute" and not self._allow_any:
            raise Stopped(fault("torch-computes", f"PyTorch computes {name}", step))
        operator = operator_named(name)
        arguments = [plain_values.decode(one, self.memory.tensor) for one in step["args"]]
        options = {key: plain_values.decode(one, self.memory.tensor) for key, one in step["kwargs"].items()}
        try:
            made = operator(*arguments, **options)
        except RuntimeError as error:
            raise BadTape(f"{name}: {str(error).splitlines()[0]}") from None
        if not operator._schema.is_mutable:
            for place, result in zip(step["results"], tensors_in(made), strict=True):
                self.memory.tensor(place).copy_(result)
        self._flows.append(self._operator_flow(step, name, operator._schema.is_mutable))
        self._note_writers(step, kind, operator)
        if kind == "move":
            if _reorders(step, operator):
                self.reordering.append(name)
            for place in step["results"]:
                if not bool((self.memory.writer_of(place) == KERNEL).any()):
                    for part in self._corners(self.memory.tensor(place)):
                        self.digests.setdefault(digest(part), name)

    def _corners(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield a tensor, and its leading part of each output's size: a kernel could copy an output out of it."""
        yield tensor
        for sizes in self._output_sizes:
            if len(sizes) == tensor.dim() and all(one <= has for one, has in zip(sizes, tensor.size(), strict=True)):
                yield tensor[tuple(slice(one) for one in sizes)]

    def _note_writers(self, step: Mapping[str, Any], kind: str, operator: Any) -> None:
        places = step["results"]
        if kind != "move" or operator.name().split(".")[0] in ("aten::add", "aten::add_"):
            for place in places:
                self.memory.note_writer(place, FILL if kind == "fill" else PYTORCH if kind == "compute" else KERNEL)
            return
        # The same move on who wrote each element tells who wrote each element of the result.
        arguments = [plain_values.decode(one, self.memory.writer_of) for one in step["args"]]
        if operator.name().startswith("aten::constant_pad_nd"):
            arguments = [*arguments[:2], FILL]
        options = {
            key: plain_values.decode(one, self.memory.writer_of)
            for key, one in step["kwargs"].items()
            if key != "dtype"
        }
        if operator._schema.is_mutable:
            self.memory.note_writer(places[0], arguments[1].clone().expand(places[0][3]))
        else:
            for place, result in zip(places, tensors_in(operator(*arguments, **options)), strict=True):
                if operator.name().split(".")[0].endswith("_backward"):
                    result[result == NOBODY] = FILL  # zeros around a gradient of a part
                self.memory.note_writer(place, result)


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's values in row-major order, the same in every dtype that holds them."""
    content = tensor.detach().to(tensor.dtype if tensor.is_complex() else torch.float64).contiguous().clone()
    data = torch.empty(0, dtype=torch.uint8).set_(content.untyped_storage())
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def _only_copies(launched: Launched, shadows: ShadowMemory) -> bool:
    """Return whether each tensor that a launch stored is now another argument, also cast, or one value everywhere."""
    tensors = [one for _, one in named_tensors(launched.arguments)]
    written = {start for start, shadow in shadows.all.items() if shadow.writer.any() or shadow.updater.any()}
    others = [one for one in tensors if one.untyped_storage().data_ptr() not in written]
    for one in tensors:
        if one.untyped_storage().data_ptr() in written and one.numel():
            flat, found = one.flatten(), digest(one)
            copied = any(other.numel() == one.numel() and digest(other.to(one.dtype)) == found for other in others)
            if not copied and not bool((flat == flat[0]).all()):
                return False
    return True


def _reorders(step: Mapping[str, Any], operator: Any) -> bool:
    """Return whether a move puts elements into another order in memory: run on their places, it mixes these up."""
    made: list[torch.Tensor] = []

    def places(reference: Any) -> torch.Tensor:
        number, _, offset, size, stride = reference
        length = offset + sum((one - 1) * by for one, by in zip(size, stride, strict=True)) + 1 if all(size) else 0
        first = _FAR_APART * number + 1
        made.append(torch.arange(first, first + max(1, length)))
        return made[-1].as_strided(size, stride, offset)

    arguments = [plain_values.decode(one, places) for one in step["args"]]
    options = {key: plain_values.decode(one, places) for key, one in step["kwargs"].items() if key != "dtype"}
    if operator._schema.is_mutable and made:
        made[0].fill_(-1)
    if operator.name().startswith("aten::constant_pad_nd"):
        arguments = [*arguments[:2], -1]
    results = tensors_in(operator(*arguments, **options))
    for one in [made[0]] if operator._schema.is_mutable else results:
        order = torch.empty(0, dtype=one.dtype).set_(one.untyped_storage())
        order = order[order > 0]
        if bool((order[1:] < order[:-1]).any()):
            return True
    return False


def fault(kind: str, message: str, step: Mapping[str, Any], advice: str = "") -> dict[str, Any]:
    file, _, line = str(step.get("line", "")).rpartition(":")
    place = {"file": file, "line": int(line) if line.isdecimal() else None}
    return {"kind": kind, "message": message, **place, **({"advice": advice} if advice else {})}


def tensors_in(made: Any) -> Sequence[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else [one for one in made if isinstance(one, torch.Tensor)]


def _every_program(grid: Sequence[int], *, backwards: bool) -> Any:
    ranges = [range(size)[::-1] if backwards else range(size) for size in reversed(tuple(grid))]
    return ((x, y, z) for z, y, x in product(*ranges))
