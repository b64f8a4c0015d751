"""Shadows of a launch's memory: for every element, which program loaded and stored it.

The arrays are as long as the tensors, but take memory only where programs reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.inspect.running.tensor_tracker import tensors_in

Places = NDArray[np.int64]
Where = NDArray[np.int64] | slice  # places in a row are a slice, which is several times faster
Lanes = NDArray[np.bool_]
Programs = NDArray[np.int32]


@dataclass
class Shadow:
    """One storage. Places are numbers of its smallest elements from its start; programs count from one, 0 is nobody."""

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
        """The places of elements at these addresses; of elements wider than the smallest, each of their places."""
        places: Places = (addresses.astype(np.int64) - self.start) // self.granule
        width = max(1, element_bytes // self.granule)
        return places if width == 1 else (places[:, None] + np.arange(width)).reshape(-1)

    def load(self, places: Where, program: int) -> tuple[int, int, Programs | None]:
        """Notes a load: how many of the places are new, how many this program had loaded, and who else wrote them."""
        readers = self.reader[places]
        new, again = readers.size - int(np.count_nonzero(readers)), 0
        if new < readers.size:
            again = int(np.count_nonzero(readers == program))
            if new + again < readers.size:
                self.earlier_reader[places] = _first(_others(readers, program), self.earlier_reader[places])
        self.reader[places] = program
        return new, again, self._others_at(places, program, self.writer, self.updater)

    def store(self, places: Where, program: int) -> tuple[int, Programs | None, Programs | None]:
        """Notes a store: how many of the places are new, who else wrote them, and who else read them."""
        writers = self.writer[places]
        new = writers.size - int(np.count_nonzero(writers))
        written = self._others_at(places, program, self.writer, self.updater)
        read = self._others_at(places, program, self.reader, self.earlier_reader)
        self.writer[places] = program
        return new, written, read

    def update(self, places: Where, program: int) -> tuple[int, Programs | None]:
        """Notes an atomic operation: how many of the places are new, and who else wrote them without one."""
        updaters = self.updater[places]
        new = updaters.size - int(np.count_nonzero(updaters))
        written = self._others_at(places, program, self.writer, self.writer)
        self.updater[places] = program
        return new, written

    @staticmethod
    def _others_at(places: Where, program: int, one: Programs, another: Programs) -> Programs | None:
        """The other programs noted at these places, in one array or else in another; None where there are none."""
        first, second = one[places], another[places]
        if not first.any() and not second.any():
            return None
        others = _first(_others(first, program), _others(second, program))
        return others if others.any() else None

    def unwritten(self, places: Where) -> Lanes | None:
        """Which of the places nobody has ever written; None where all hold something."""
        if self.written is None:
            return None
        places = self.numbered(places)
        untouched: Lanes = (self.writer[places] == 0) & (self.updater[places] == 0)
        return untouched & ~self.written[places * self.granule]

    def contents(self, addresses: NDArray[Any]) -> NDArray[np.float64]:
        """What the memory holds at these addresses, as elements of the tensor."""
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
    """The programs but this one, for which 0 stands."""
    return np.where(programs == program, 0, programs)


def _first(programs: Programs, otherwise: Programs) -> Programs:
    return np.where(programs != 0, programs, otherwise)


class Shadows:
    """All the memory that a launch's arguments reach."""

    def __init__(self, arguments: dict[str, Any], written_bytes: Callable[[str], NDArray[np.bool_] | None]) -> None:
        """`written_bytes` says of an argument which bytes of its storage hold something; None where all do."""
        self._by_argument: dict[str, Shadow] = {}
        self.tensors = dict(named_tensors(arguments))
        granules: dict[int, int] = {}
        for tensor in self.tensors.values():
            start = tensor.untyped_storage().data_ptr()
            granules[start] = min(granules.get(start, 16), tensor.element_size())
        self.all: dict[int, Shadow] = {}
        for name, tensor in self.tensors.items():
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start not in self.all:
                end = start + storage.nbytes()
                self.all[start] = Shadow(start, end, granules[start], tensor, written_bytes(name))
            self._by_argument[name] = self.all[start]

    def of(self, argument: str | None, first_address: int) -> Shadow | None:
        """The memory that an access reaches: that of its argument, else the one that holds the address."""
        if argument is not None:
            return self._by_argument.get(argument)
        return next((one for one in self.all.values() if one.start <= first_address < one.end), None)

    def argument_at(self, address: int) -> str | None:
        """The argument in whose memory an address lies."""
        for name, shadow in self._by_argument.items():
            if shadow.start <= address < shadow.end:
                return name
        return None


def named_tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among a launch's arguments, by the name that the interpreter gives them."""
    for name, value in arguments.items():
        found = list(tensors_in(value))
        for index, tensor in enumerate(found):
            yield (f"{name}[{index}]" if isinstance(value, tuple | list) else name), tensor
