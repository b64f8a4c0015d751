"""Shadow memory of a launch: for every element, which programs loaded and stored it.

The arrays are as long as the tensors, but occupy memory only where programs access them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.lab.inspect.tracing.views import View
from tilesmith.toolchain.interpreter import live_tensors

Places = NDArray[np.int64]
Where = NDArray[np.int64] | slice  # consecutive places are a slice, which is several times faster
Lanes = NDArray[np.bool_]
Programs = NDArray[np.int32]


@dataclass
class StorageShadow:
    """The shadow of one storage.

    A place is an index in units of `granule` bytes, the smallest element size. Programs count from 1; 0 means none.
    """

    start: int
    end: int
    granule: int
    tensor: torch.Tensor
    written: NDArray[np.bool_] | None
    writer: NDArray[np.int32] = field(init=False)
    reader: NDArray[np.int32] = field(init=False)
    earlier_reader: NDArray[np.int32] = field(init=False)
    updater: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        places = -(-(self.end - self.start) // self.granule)
        for name in ("writer", "reader", "earlier_reader", "updater"):
            setattr(self, name, np.zeros(places, dtype=np.int32))

    def places(self, addresses: NDArray[Any], element_bytes: int) -> Places:
        """Return the places of the elements at these addresses; a wide element has several places."""
        places: Places = (addresses.astype(np.int64) - self.start) // self.granule
        width = max(1, element_bytes // self.granule)
        return places if width == 1 else (places[:, None] + np.arange(width)).reshape(-1)

    def load(self, places: Where, program: int) -> tuple[int, int, Programs | None]:
        """Note a load. Return how many places are new, how many this program loaded before, and their other writers."""
        readers = self.reader[places]
        new, again = readers.size - int(np.count_nonzero(readers)), 0
        if new < readers.size:
            again = int(np.count_nonzero(readers == program))
            if new + again < readers.size:
                self.earlier_reader[places] = _first(_others(readers, program), self.earlier_reader[places])
        self.reader[places] = program
        return new, again, self._others_at(places, program, self.writer, self.updater)

    def store(self, places: Where, program: int) -> tuple[int, Programs | None, Programs | None]:
        """Note a store. Return how many places are new, their other writers, and their other readers."""
        writers = self.writer[places]
        new = writers.size - int(np.count_nonzero(writers))
        written = self._others_at(places, program, self.writer, self.updater)
        read = self._others_at(places, program, self.reader, self.earlier_reader)
        self.writer[places] = program
        return new, written, read

    def update(self, places: Where, program: int) -> tuple[int, Programs | None]:
        """Note an atomic. Return how many places are new, and the other programs that wrote them without an atomic."""
        updaters = self.updater[places]
        new = updaters.size - int(np.count_nonzero(updaters))
        written = self._others_at(places, program, self.writer, self.writer)
        self.updater[places] = program
        return new, written

    @staticmethod
    def _others_at(places: Where, program: int, one: Programs, another: Programs) -> Programs | None:
        """Return the other programs at these places, from one array or else another; None if there are none."""
        first, second = one[places], another[places]
        if not first.any() and not second.any():
            return None
        others = _first(_others(first, program), _others(second, program))
        return others if others.any() else None

    def unwritten(self, places: Where) -> Lanes | None:
        """Return which places were never written; None where all were written before the launch."""
        if self.written is None:
            return None
        places = self.numbered(places)
        untouched: Lanes = (self.writer[places] == 0) & (self.updater[places] == 0)
        return untouched & ~self.written[places * self.granule]

    def contents(self, addresses: NDArray[Any]) -> NDArray[np.float64]:
        """Return the elements at these addresses."""
        storage = self.tensor.untyped_storage()
        elements = torch.empty(0, dtype=self.tensor.dtype).set_(storage)
        places = (addresses.astype(np.int64) - self.start) // self.tensor.element_size()
        inside = places[(places >= 0) & (places < elements.numel())]
        found: NDArray[np.float64] = elements[torch.from_numpy(inside)].to(torch.float64).numpy()
        return found

    def now_written(self, places: Where) -> None:
        if self.written is None:
            return
        if isinstance(places, slice):
            self.written[places.start * self.granule : places.stop * self.granule] = True
            return
        for byte in range(self.granule):
            self.written[places * self.granule + byte] = True

    @staticmethod
    def numbered(places: Where) -> Places:
        return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def _others(programs: Programs, program: int) -> Programs:
    """Return the programs with this one replaced by 0."""
    return np.where(programs == program, 0, programs)


def _first(programs: Programs, otherwise: Programs) -> Programs:
    return np.where(programs != 0, programs, otherwise)


class ShadowMemory:
    """The shadows of all storages of a launch's arguments, and of those that it finds through a table of addresses."""

    def __init__(self, arguments: dict[str, Any], written_bytes: Callable[[str], NDArray[np.bool_] | None]) -> None:
        """`written_bytes(argument)` returns which bytes of its storage were written; None where all were."""
        self._by_argument: dict[str, StorageShadow] = {}
        self.tensors = dict(named_tensors(arguments))
        self.views = {name: View(tensor) for name, tensor in self.tensors.items()}
        granules: dict[int, int] = {}
        for tensor in self.tensors.values():
            start = tensor.untyped_storage().data_ptr()
            granules[start] = min(granules.get(start, 16), tensor.element_size())
        self.all: dict[int, StorageShadow] = {}
        self._live: dict[int, torch.Tensor] | None = None  # by the start of the storage
        for name, tensor in self.tensors.items():
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start not in self.all:
                end = start + storage.nbytes()
                self.all[start] = StorageShadow(start, end, granules[start], tensor, written_bytes(name))
            self._by_argument[name] = self.all[start]

    def of(self, argument: str | None, first_address: int) -> StorageShadow | None:
        """Return the shadow of an access: that of its argument, else that of the storage with the address."""
        if argument is not None:
            return self._by_argument.get(argument)
        return self._holding(first_address) or self._found_behind_table(first_address)

    def _holding(self, address: int) -> StorageShadow | None:
        return next((one for one in self.all.values() if one.start <= address < one.end), None)

    def _found_behind_table(self, address: int) -> StorageShadow | None:
        """Return the shadow of a tensor that is no argument: the kernel loaded its address."""
        if self._live is None:
            self._live = {one.untyped_storage().data_ptr(): one for one in live_tensors()}
        for start, tensor in self._live.items():
            end = start + tensor.untyped_storage().nbytes()
            if start <= address < end:
                self.all[start] = StorageShadow(start, end, tensor.element_size(), tensor, None)
                return self.all[start]
        return None

    def outside_view(self, argument: str | None, addresses: NDArray[np.uint64]) -> Lanes | None:
        """Return which addresses are outside the tensor, though maybe inside its storage; None where none can be."""
        view = self.views.get(argument or "")
        return None if view is None or view.is_whole_storage else ~view.holds(addresses)

    def argument_at(self, address: int) -> str | None:
        """Return the argument whose storage contains the address."""
        for name, shadow in self._by_argument.items():
            if shadow.start <= address < shadow.end:
                return name
        return None


def named_tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors among a launch's arguments with the names that the interpreter gives them."""
    for name, value in arguments.items():
        found = list(tensors_in(value))
        for index, tensor in enumerate(found):
            yield (f"{name}[{index}]" if isinstance(value, tuple | list) else name), tensor
