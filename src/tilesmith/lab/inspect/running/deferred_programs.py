"""Programs of a launch that run only when the inspected script reads their results.

Without a GPU the interpreter computes all results. A large grid takes long, and a script may never read its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.toolchain.interpreter import Launched, interpret


@dataclass
class _Deferred:
    """The remaining programs of one launch, and the storages that they read or write."""

    launched: Launched
    programs: Iterator[Program]
    storages: set[int]


class DeferredPrograms:
    """All programs that have not run yet, in launch order."""

    def __init__(self) -> None:
        self._launches: list[_Deferred] = []

    def add(self, launched: Launched, programs: Iterator[Program]) -> None:
        first = next(programs, None)
        if first is not None:
            storages = set(_storages(tensors_in(launched.arguments)))
            self._launches.append(_Deferred(launched, chain([first], programs), storages))

    def run_for(self, tensors: Iterable[torch.Tensor]) -> None:
        """Run the programs that these tensors depend on."""
        if self._launches:
            storages = set(_storages(tensors))
            while any(one.storages & storages for one in self._launches):
                self._run_first()

    def run_all(self) -> None:
        while self._launches:
            self._run_first()

    def _run_first(self) -> None:
        # Later launches may read what earlier launches write, so the order is kept.
        first = self._launches.pop(0)
        interpret(first.launched.kernel, first.launched.grid, first.launched.arguments, None, first.programs)  # type: ignore[arg-type]


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    for tensor in tensors:
        try:
            yield tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            continue
