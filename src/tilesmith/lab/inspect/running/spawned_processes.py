"""Receive the kernels of processes that an inspected script starts: spawned, forked, or by a command line."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from tilesmith.lab.inspect.model import Kernel
from tilesmith.lab.inspect.options import InspectOptions

SECONDS_TO_END = 2.0


class SpawnedProcesses:
    """Listens for processes that report kernels. Each connects on its own, so none waits for another."""

    def __init__(self, options: InspectOptions) -> None:
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="tilesmith-inspect-")
        self.address = str(Path(self._folder.name) / "socket")
        self._found: dict[tuple[int, int], Kernel] = {}
        self._readers: list[threading.Thread] = []
        self._ending = False

    def __enter__(self) -> SpawnedProcesses:
        self._listener = Listener(self.address, "AF_UNIX")
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ending = True
        with contextlib.suppress(OSError):
            Client(self.address).close()  # ends the wait below
        self._accepting.join(SECONDS_TO_END)
        for reader in self._readers:
            reader.join(SECONDS_TO_END)
        self._listener.close()
        self._folder.cleanup()

    def kernels(self) -> Sequence[Kernel]:
        """Return the kernels of all processes; kernels that several processes launch alike, once."""
        distinct: dict[Any, Kernel] = {}
        for kernel in self._found.values():
            # Each process has addresses of its own; a compiler asks whether 16 divides them.
            arguments = [replace(one, alignment=min(one.alignment, 16)) for one in kernel.arguments]
            key = (kernel.name, kernel.file, kernel.grid, str(kernel.constants), str(arguments))
            distinct.setdefault(key, kernel)
        return list(distinct.values())

    def _accept(self) -> None:
        while True:
            try:
                pipe = self._listener.accept()
                if self._ending:
                    return
                pipe.send(self._options)
            except OSError:
                continue  # that process is gone
            reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _read(self, pipe: Connection) -> None:
        number = len(self._readers)
        with contextlib.suppress(EOFError, OSError), pipe:
            while True:
                message = pipe.recv()
                if message[0] == "kernel":
                    self._found[number, message[1]] = message[2]
