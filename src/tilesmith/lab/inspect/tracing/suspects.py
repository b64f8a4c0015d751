"""Find the programs of a large grid that deserve a trace: those out of bounds, and those that share elements.

The addresses of all programs are computed at once where they follow from `tl.program_id`. So a fault between two
programs in the middle of a grid is found although only a sample is traced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.tracing.shadow_memory import named_tensors
from tilesmith.lab.inspect.tracing.views import View
from tilesmith.toolchain.interpreter import Launched
from tilesmith.toolchain.interpreter.running import recording
from tilesmith.toolchain.interpreter.together.all_programs import CannotFollow, PathRecorder, Recorded, program_of
from tilesmith.toolchain.interpreter.together.every_address import Batch, every_address

SECONDS = 4.0
MOST_SUSPECTS = 8
MOST_SHADOW_BYTES = 1 << 30


@dataclass
class Suspects:
    """Programs to trace, and in words what was computed: all addresses, or why not."""

    programs: list[Program] = field(default_factory=list)
    complete: bool = False
    reason: str = ""


def suspects(launched: Launched, written: frozenset[str], has_atomics: bool) -> Suspects:
    """Return the programs of a launch on host tensors that go out of bounds or share elements with another program.

    `written` are the arguments that traced programs store to. Where the kernel uses atomics, programs may order
    themselves, so only bounds are checked.
    """
    found = Suspects()
    tensors = dict(named_tensors(launched.arguments))
    search = _Search(launched.grid, tensors, set() if has_atomics else set(written))
    try:
        with recording(launched, (), PathRecorder) as run:
            for wanted in (search.is_store, search.is_load):
                for batch in every_address(run, launched.grid, SECONDS / 2, wanted):
                    search.add(batch)
        found.complete = True
    except CannotFollow as why:
        found.reason = str(why)
    numbers = list(dict.fromkeys(search.numbers))[:MOST_SUSPECTS]
    found.programs = [program_of(number, launched.grid) for number in numbers]
    return found


class _Search:
    """The program that last stored each element, and the suspicious programs found so far."""

    def __init__(self, grid: Program, tensors: dict[str, torch.Tensor], shared: set[str]) -> None:
        self.numbers: list[int] = []
        self._tensors = tensors
        self._views = {name: View(tensor) for name, tensor in tensors.items()}
        self._writers: dict[int, NDArray[np.int32]] = {}
        self._written_storages = {tensors[name].untyped_storage().data_ptr() for name in shared if name in tensors}
        self._granules: dict[int, int] = {}
        for tensor in tensors.values():
            start = tensor.untyped_storage().data_ptr()
            self._granules[start] = min(self._granules.get(start, 16), tensor.element_size())

    def is_store(self, access: Recorded) -> bool:
        return access.kind != "load" and access.argument in self._tensors

    def is_load(self, access: Recorded) -> bool:
        return access.kind == "load" and access.argument in self._tensors

    def add(self, batch: Batch) -> None:
        if len(self.numbers) >= 2 * MOST_SUSPECTS:
            return
        storage = self._tensors[batch.argument or ""].untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        outside = (batch.addresses < np.uint64(start)) | (batch.addresses > np.uint64(end - batch.element_bytes))
        view = self._views[batch.argument or ""]
        if not view.is_whole_storage:
            outside |= ~view.holds(batch.addresses)
        bad = (outside & batch.mask).any(axis=1)
        if bad.any():
            self.numbers += batch.programs[bad][:MOST_SUSPECTS].tolist()
        if start not in self._written_storages or batch.kind == "atomic":
            return
        granule = self._granules[start]
        if storage.nbytes() // granule * 4 > MOST_SHADOW_BYTES:
            return
        rows, lanes = np.nonzero(batch.mask & ~outside)
        places = (batch.addresses[rows, lanes].astype(np.int64) - start) // granule
        self._meet(batch, start, storage.nbytes() // granule, places, (batch.programs[rows] + 1).astype(np.int32))

    def _meet(
        self, batch: Batch, start: int, size: int, places: NDArray[np.int64], programs: NDArray[np.int32]
    ) -> None:
        writers = self._writers.get(start)
        if writers is None:
            writers = self._writers[start] = np.zeros(size, dtype=np.int32)
        before = writers[places]
        if batch.kind == "store":
            writers[places] = programs
            now = writers[places]
            self._note(before, programs)
            self._note(now, programs)  # two programs of this batch
        else:
            self._note(before, programs)

    def _note(self, others: NDArray[np.int32], programs: NDArray[np.int32]) -> None:
        clash = np.flatnonzero((others != 0) & (others != programs))
        for place in clash[:: max(1, clash.size // 2)][:2].tolist():
            self.numbers += [int(others[place]) - 1, int(programs[place]) - 1]
