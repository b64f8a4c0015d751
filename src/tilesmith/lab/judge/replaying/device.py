"""Run a tape on a device: the rebuilt kernels compiled, the listed operators, memory between guards.

Nothing of the candidate's Python runs here, so its streams, captures, constructors and caches do not exist. A call
costs what its tape does. New memory is poisoned before each run, so a launch that does nothing leaves its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.cuda.launching import CudaKernels
from tilesmith.lab.judge.isolation.arena import ALIGNMENT, aligned
from tilesmith.lab.judge.recording import plain_values
from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_named
from tilesmith.lab.judge.replaying.memory import POISON, BadTape, checked_reference
from tilesmith.lab.judge.replaying.operators import kind_of, operator_named
from tilesmith.lab.judge.replaying.replay import Replay, Stopped, fault, tensors_in
from tilesmith.lab.judge.tape_checks import kernel_of, references_in
from tilesmith.toolchain.interpreter import Launched
from tilesmith.toolchain.portable import RebuiltKernels

GUARD = 4 * ALIGNMENT  # bytes before and after each storage
MOST_BYTES = 8 << 30
MOST_PROGRAMS = 1 << 31
Perform = Callable[[Launched], None]


class _Place:
    """One storage: `length` bytes from `start` of a buffer of bytes."""

    def __init__(self, buffer: Tensor, start: int, length: int, *, guarded: bool) -> None:
        self.buffer, self.start, self.length, self.guarded = buffer, start, length, guarded

    @property
    def content(self) -> Tensor:
        return self.buffer[self.start : self.start + self.length]


class DeviceMemory:
    """Storages by number, on a device. Inputs are filled by the caller; constants keep their values."""

    def __init__(
        self,
        storages: Sequence[Mapping[str, Any]],
        constants: Mapping[str, Tensor],
        device: str,
        *,
        exact: bool = False,
    ) -> None:
        """With `exact`, memory has no guards and nobody writes new memory: another tool watches accesses."""
        self.places: list[_Place] = []
        self.inputs: dict[str, int] = {}
        self._new: list[int] = []
        self._constants: dict[int, Tensor] = {}
        total = 0
        for number, storage in enumerate(storages):
            length, kind = storage.get("bytes"), storage.get("kind")
            total += length if isinstance(length, int) else MOST_BYTES
            if not isinstance(length, int) or length < 0 or total > MOST_BYTES:
                raise BadTape(f"storage {number} has {length!r} bytes")
            if exact:
                buffer = torch.empty(max(1, length), dtype=torch.uint8, device=device)
            else:
                buffer = torch.full((2 * GUARD + aligned(length),), POISON, dtype=torch.uint8, device=device)
            self.places.append(_Place(buffer, 0 if exact else GUARD, length, guarded=not exact))
            if kind == "input":
                self.inputs[str(storage.get("name"))] = number
            elif kind == "constant":
                if str(number) not in constants or constants[str(number)].numel() != length:
                    raise BadTape(f"storage {number} is a constant without a value")
                self._constants[number] = constants[str(number)].to(device)
            elif kind == "new":
                self._new += [] if exact else [number]
            else:
                raise BadTape(f"storage {number} is of kind {kind!r}")

    def reset(self) -> None:
        """Poison new memory, and restore constants: no run finds results of an earlier one."""
        for number in self._new:
            self.places[number].content.fill_(POISON)
        for number, value in self._constants.items():
            self.places[number].content.copy_(value)

    def fill(self, contents: Mapping[str, Tensor]) -> None:
        """Put bytes into the inputs, by name."""
        for name, number in self.inputs.items():
            if name not in contents or contents[name].numel() != self.places[number].length:
                raise BadTape(f"the input {name!r}, which the task does not have")
            self.places[number].content.copy_(contents[name])

    def changed_inputs(self, contents: Mapping[str, Tensor]) -> list[str]:
        return [
            name for name, number in self.inputs.items() if not torch.equal(self.places[number].content, contents[name])
        ]

    def tensor(self, reference: Any) -> Tensor:
        """Return the tensor of a reference. Raises BadTape."""
        number, dtype_name, offset, size, stride = checked_reference(reference, len(self.places))
        place = self.places[number]
        try:
            dtype = dtype_named(dtype_name)
        except NotPlain as error:
            raise BadTape(str(error)) from None
        elements = offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True)) + 1
        if all(size) and elements * dtype.itemsize > place.length:
            raise BadTape("a tensor outside its storage")
        start = place.start // dtype.itemsize + offset
        empty = torch.empty(0, dtype=dtype, device=place.buffer.device)
        return empty.set_(place.buffer.untyped_storage(), start, tuple(size), tuple(stride))

    def address(self, number: int) -> tuple[int, int]:
        """Return the address and the length of a storage. Raises BadTape."""
        if not 0 <= number < len(self.places):
            raise BadTape(f"storage {number}")
        place = self.places[number]
        return place.buffer.data_ptr() + place.start, place.length

    def rebind(self, reference: Any, made: Tensor) -> bool:
        """Let an operator's result be a storage, if it fills the storage. A copy would cost time that nobody asked for.

        Return whether it does.
        """
        number, dtype_name, offset, size, stride = checked_reference(reference, len(self.places))
        place, storage = self.places[number], made.untyped_storage()
        same = (str(made.dtype), made.storage_offset(), list(made.size()), list(made.stride())) == (
            f"torch.{dtype_name}", offset, size, stride,
        )  # fmt: skip
        if number not in self._new or not same or storage.nbytes() < place.length or made.device != place.buffer.device:
            return False
        buffer = torch.empty(0, dtype=torch.uint8, device=made.device).set_(storage)
        self.places[number] = _Place(buffer, 0, place.length, guarded=False)
        return True

    def guards_hold(self) -> bool:
        """Return whether nothing wrote next to a storage."""
        ends = [
            torch.stack([(part == POISON).all() for part in (one.buffer[:GUARD], one.buffer[-GUARD:])]).all()
            for one in self.places
            if one.guarded
        ]
        return bool(torch.stack(ends).all()) if ends else True


class Exchange:
    """The bytes that each launch of a run stored. A later run uses them in place of its own results."""

    def __init__(self) -> None:
        self._kept: list[dict[int, Tensor]] = []
        self._given: list[dict[int, Tensor]] | None = None

    def give_back(self) -> None:
        """From now on, give the kept results in the place of what launches store."""
        self._given, self._kept = self._kept, []

    @contextmanager
    def around(self, step: Mapping[str, Any], memory: DeviceMemory) -> Iterator[None]:
        numbers = {one[0] for one in references_in(step["arguments"]) if isinstance(one[0], int)}
        before = {number: memory.places[number].content.clone() for number in numbers}
        yield
        stored = {
            number: memory.places[number].content.clone()
            for number in numbers
            if not torch.equal(memory.places[number].content, before[number])
        }
        if self._given is not None and len(self._kept) < len(self._given):
            for number, content in self._given[len(self._kept)].items():
                memory.places[number].content.copy_(content)
        self._kept.append(stored)


class DeviceReplay(Replay):
    """One tape on one memory. `perform` launches a kernel of Triton; `cuda` has the device code of CUDA kernels."""

    most_programs = MOST_PROGRAMS

    def __init__(
        self, tape: Mapping[str, Any], memory: DeviceMemory, kernels: RebuiltKernels, perform: Perform, *,
        allow_any: bool, cuda: CudaKernels | None = None,
    ) -> None:  # fmt: skip
        super().__init__(tape, memory, Path(), allow_any=allow_any, kernels=kernels)
        self._device_memory = memory
        self._perform = perform
        self._cuda = cuda
        self.exchange: Exchange | None = None

    def launched(self, step: Mapping[str, Any]) -> Any:
        kernel = kernel_of(self._tape, step)
        if self._cuda is not None and kernel is not None and "cuda" in kernel:
            return self._cuda.launch(step, kernel, self._device_memory.address)
        return super().launched(step)

    def _launch(self, launched: Any, step: Mapping[str, Any], tf32: bool) -> None:
        exchanged = self.exchange.around(step, self._device_memory) if self.exchange is not None else nullcontext()
        with exchanged:
            if isinstance(launched, Launched):
                self._perform(launched)
            else:
                launched.run()

    def _operate(self, step: Mapping[str, Any]) -> None:
        name = step["operator"]
        if kind_of(step) == "compute" and not self._allow_any:
            raise Stopped(fault("torch-computes", f"PyTorch computes {name}", step))
        operator = operator_named(name)
        memory = self._device_memory
        arguments = [plain_values.decode(one, memory.tensor) for one in step["args"]]
        options = {key: plain_values.decode(one, memory.tensor) for key, one in step["kwargs"].items()}
        if any(argument.name == "device" for argument in operator._schema.arguments):
            options["device"] = memory.places[step["results"][0][0]].buffer.device
            options.pop("pin_memory", None)
        made = operator(*arguments, **options)
        if not operator._schema.is_mutable:
            for place, result in zip(step["results"], tensors_in(made), strict=True):
                if not memory.rebind(place, result):
                    memory.tensor(place).copy_(result)
