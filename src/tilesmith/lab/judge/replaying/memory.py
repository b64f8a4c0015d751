"""The storages of a tape, and for each byte who wrote it: nobody, a kernel, a fill, an input, a constant, PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.judge.isolation.arena import Arena, view_of
from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_named

NOBODY, KERNEL, FILL, INPUT, CONSTANT, PYTORCH = range(6)
POISON = 0xFF  # NaN in every floating-point format, and -1 or the largest integer
MOST_BYTES = 2 << 30


class BadTape(Exception):
    """The tape contradicts itself; the message says where."""


class TapeMemory:
    """Storages by number: inputs from the arena, constants from the arena, new ones poisoned."""

    def __init__(
        self,
        storages: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, Any],
        constants: Mapping[str, Any],
        arena: Arena,
    ) -> None:
        self.contents: list[torch.Tensor] = []
        self.writers: list[torch.Tensor] = []
        self.input_names: dict[int, str] = {}
        total = 0
        for number, storage in enumerate(storages):
            length = storage.get("bytes")
            total += length if isinstance(length, int) else MOST_BYTES
            if not isinstance(length, int) or length < 0 or total > MOST_BYTES:
                raise BadTape(f"storage {number} has {length!r} bytes")
            self._add(number, storage, length, inputs, constants, arena)
        self.before = {number: self.contents[number].clone() for number in self.input_names}
        self._kept = {int(number): self.contents[int(number)].clone() for number in constants}

    def _add(
        self, number: int, storage: Mapping[str, Any], length: int, inputs: Mapping[str, Any],
        constants: Mapping[str, Any], arena: Arena,
    ) -> None:  # fmt: skip
        kind = storage.get("kind")
        content = torch.full((length,), POISON, dtype=torch.uint8)
        writer = NOBODY
        if kind == "input":
            name = str(storage.get("name"))
            if name not in inputs:
                raise BadTape(f"storage {number} is the input {name!r}, which the task does not have")
            at, given = inputs[name]
            if given != length:
                raise BadTape(f"the input {name} has {given} bytes, not {length}")
            content.copy_(arena.storage_at(at, length))
            self.input_names[number] = str(name)
            writer = INPUT
        elif kind == "constant":
            if str(number) not in constants:
                raise BadTape(f"storage {number} is a constant without a value")
            content.copy_(arena.storage_at(constants[str(number)], length))
            writer = CONSTANT
        elif kind != "new":
            raise BadTape(f"storage {number} is of kind {kind!r}")
        self.contents.append(content)
        self.writers.append(torch.full((length,), writer, dtype=torch.uint8))

    def tensor(self, reference: Any) -> torch.Tensor:
        """Return the tensor of a reference. Raises BadTape."""
        number, dtype, offset, size, stride = checked_reference(reference, len(self.contents))
        try:
            return view_of(self.contents[number], dtype_named(dtype), offset, size, stride)
        except (RuntimeError, TypeError, NotPlain) as error:
            raise BadTape(f"a tensor outside its storage: {error}") from None

    def writer_of(self, reference: Any) -> torch.Tensor:
        """Return who wrote each element of a tensor: the writer of its first byte."""
        number, dtype, offset, size, stride = checked_reference(reference, len(self.contents))
        width = dtype_named(dtype).itemsize
        return self.writers[number].as_strided(size, [one * width for one in stride], offset * width)

    def note_writer(self, reference: Any, writers: torch.Tensor | int) -> None:
        """Note who wrote each element of a tensor."""
        number, dtype, offset, size, stride = checked_reference(reference, len(self.contents))
        width = dtype_named(dtype).itemsize
        for byte in range(width):
            place = self.writers[number].as_strided(size, [one * width for one in stride], offset * width + byte)
            if isinstance(writers, int):
                place.fill_(writers)
            else:
                place.copy_(writers)

    def written_bytes(self, number: int) -> NDArray[np.bool_] | None:
        """Return which bytes of a storage were written; None where all were, as in inputs and constants."""
        writers = self.writers[number].numpy()
        if number in self.input_names or not (writers == NOBODY).any():
            return None
        written: NDArray[np.bool_] = np.not_equal(writers, NOBODY)
        return written

    def number_at(self, address: int) -> int | None:
        """Return the storage that starts at an address."""
        return next((n for n, one in enumerate(self.contents) if one.numel() and one.data_ptr() == address), None)

    def changed_constants(self) -> dict[int, torch.Tensor]:
        """Return, for each storage from before the call, which bytes the call changed."""
        changed = {number: self.contents[number] != before for number, before in self._kept.items()}
        return {number: bytes for number, bytes in changed.items() if bool(bytes.any())}

    def forget(self, changed: Mapping[int, torch.Tensor]) -> None:
        """Poison bytes of storages from before the call, as if nobody had written them."""
        for number, lost in changed.items():
            self.contents[number][lost] = POISON
            self.writers[number][lost] = NOBODY

    def changed_inputs(self) -> list[str]:
        return [
            self.input_names[number]
            for number, before in self.before.items()
            if not torch.equal(self.contents[number], before)
        ]


def checked_reference(reference: Any, storages: int) -> tuple[int, str, int, list[int], list[int]]:
    """Return the storage, dtype, offset, size and stride of a reference. Raises BadTape."""
    try:
        number, dtype, offset, size, stride = reference
        numbers = [number, offset, *size, *stride]
    except (TypeError, ValueError):
        raise BadTape(f"{str(reference)[:80]} is no tensor") from None
    whole = all(isinstance(one, int) and one >= 0 for one in numbers) and len(size) == len(stride)
    if not whole or number >= storages or not isinstance(dtype, str):
        raise BadTape(f"{str(reference)[:80]} is no tensor")
    return number, dtype, offset, list(size), list(stride)
