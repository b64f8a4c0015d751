"""Find races between the programs of interpreted launches.

The interpreter runs one program after another, so a race does not change its results. This observer notes which program
loads and stores which element, and names pairs of programs whose order would decide a value on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.lab.inspect.metrics.launch_metrics import element_name
from tilesmith.lab.inspect.tracing.sanitizer import Incident, Sanitizer
from tilesmith.lab.inspect.tracing.shadow_memory import ShadowMemory, StorageShadow, Where
from tilesmith.toolchain.interpreter import Access, Observer

RACES = ("write-write", "read-write", "lanes")


class RaceFinder(Observer):
    """Counts launches, and collects the races inside each launch."""

    def __init__(self) -> None:
        self.launches = 0
        self._found: dict[tuple[str, str, int], str] = {}
        self._kernel = ""
        self._grid = (1, 1, 1)

    def races(self) -> Iterator[str]:
        """Yield one message for each source line with a race."""
        self._collect()
        yield from self._found.values()

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: Mapping[str, object]) -> None:
        self._collect()
        self.launches += 1
        self._kernel, self._grid = kernel.__name__, grid
        self._shadows = ShadowMemory(dict(arguments), lambda argument: None)
        self._sanitizer = Sanitizer(grid, self._shadows)

    def load(self, access: Access) -> None:
        if self._grid != (1, 1, 1):
            self._note(access)

    def store(self, access: Access) -> None:
        self._note(access)

    def atomic(self, access: Access) -> None:
        self._note(access)

    def _note(self, access: Access) -> None:
        active = access.addresses.reshape(-1) if access.mask.all() else access.addresses[access.mask]
        if not active.size:
            return
        argument = access.argument or self._shadows.argument_at(int(active[0]))
        shadow = self._shadows.of(argument, int(active[0]))
        if shadow is None:
            return
        where = _places(access, shadow, active)
        if isinstance(where, slice) or where.size:
            x, y, z = access.program
            number = 1 + x + self._grid[0] * (y + self._grid[1] * z)
            self._sanitizer.access(access, argument, shadow, where, number)

    def _collect(self) -> None:
        if self.launches:
            for incident in self._sanitizer.incidents():
                if incident.kind in RACES:
                    self._found.setdefault((incident.kind, incident.file, incident.line), self._message(incident))

    def _message(self, incident: Incident) -> str:
        name = incident.argument or "memory"
        tensor = self._shadows.tensors.get(name)
        element = name if incident.element is None or tensor is None else name + element_name(tensor, incident.element)
        count = f"{incident.elements:,} element{'' if incident.elements == 1 else 's'}"
        place = f"{self._kernel}, {Path(incident.file).name}:{incident.line}"
        if incident.kind == "lanes":
            return f"race in {place}: lanes of one store write different values to one element of {name} ({count})"
        pair = f"programs {incident.other} and {incident.program}"
        deed = "both write" if incident.kind == "write-write" else "read and write"
        return f"race in {place}: {pair} {deed} {element} ({count}); on a GPU their order decides the value"


def _places(access: Access, shadow: StorageShadow, active: Any) -> Where:
    """Return the places that an access touches, each once."""
    first, last = int(active[0]), int(active[-1])
    size = access.element_bytes
    if size == shadow.granule and last - first == (active.size - 1) * size and bool((np.diff(active) == size).all()):
        start = max(0, (first - shadow.start) // size)
        return slice(start, max(start, min(shadow.writer.size, (last - shadow.start) // size + 1)))
    inside = (active >= np.uint64(shadow.start)) & (active <= np.uint64(shadow.end - size))
    return np.unique(shadow.places(active[inside], size))
