"""Programs of a launch that run only when the inspected script reads their results.

Without a GPU the interpreter computes all results. A large grid takes long, and a script may never read its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.toolchain.interpreter import Launched, Observer, interpret, interpret_together
from tilesmith.toolchain.interpreter.host import with_tensors

LONG_QUEUE = 8  # launches; from there on, those whose results are gone are dropped

_use_count: Any = torch._C._storage_Use_Count


@dataclass
class _Deferred:
    """The remaining programs of one launch, and the storages that they read or write."""

    launched: Launched
    programs: Iterator[Program]
    storages: set[int]
    written: set[int]


class DeferredPrograms:
    """All programs that have not run yet, in launch order. `observer` sees the accesses of programs that run here."""

    def __init__(self, observer: Callable[[Launched], Observer | None] = lambda launched: None) -> None:
        self._launches: list[_Deferred] = []
        self._observer = observer

    def add(
        self,
        launched: Launched,
        programs: Iterator[Program],
        written: Iterable[str] | None = None,
    ) -> None:
        """Keep programs for later. `written` names the arguments that the kernel writes; None: perhaps all of them."""
        first = next(programs, None)
        if first is None:
            return
        storages = set(_storages(tensors_in(launched.arguments)))
        names = launched.arguments if written is None else written
        outputs = set(_storages(tensors_in([launched.arguments[name] for name in names])))
        # Aliases: the script's own tensors must be free to go.
        aliases = {name: with_tensors(value, _alias) for name, value in launched.arguments.items()}
        deferred = replace(launched, arguments=aliases)
        rest = chain([first], programs)
        self._launches.append(_Deferred(deferred, rest, storages, outputs))
        if len(self._launches) > LONG_QUEUE:
            self._drop_unreadable()

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
        launched = first.launched
        observer = self._observer(launched)
        left = interpret_together(launched, observer, list(first.programs))
        interpret(launched.kernel, launched.grid, launched.arguments, observer, left)

    def _drop_unreadable(self) -> None:
        """Drop launches whose results nobody can read any more: neither the script nor a later launch."""
        ours: Counter[int] = Counter()
        for one in self._launches:
            ours.update(_storages(tensors_in(one.launched.arguments)))
        kept: list[_Deferred] = []
        needed: set[int] = set()
        for one in reversed(self._launches):
            # One more reference is that of the Python object that `_storages` made.
            dead = all(_use_count(storage) <= ours[storage] + 1 for storage in one.written)
            if dead and not one.written & needed:
                continue
            kept.insert(0, one)
            needed |= set(_storages(tensors_in(one.launched.arguments)))
        self._launches = kept


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    for tensor in tensors:
        try:
            yield tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            continue
