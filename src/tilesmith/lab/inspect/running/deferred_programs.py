"""Programs of a launch, and matrix products of torch, that run only when the inspected script reads their results.

Without a GPU the host computes all results. A large grid takes long, and a script may never read its results: a loop
that measures time calls the same function ten thousand times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.lab.inspect.running.written_memory import WrittenBytes
from tilesmith.toolchain.interpreter import Launched, interpret, interpret_together
from tilesmith.toolchain.interpreter.host import with_tensors

LONG_QUEUE = 8  # from there on, work whose results are gone is dropped

_use_count: Any = torch._C._storage_Use_Count


@dataclass
class _Deferred:
    """Work that has not run yet, and the storages that it reads or writes."""

    run: Callable[[], None]
    tensors: list[torch.Tensor]  # aliases: the script's own tensors must be free to go
    written: set[int]
    replaces: bool = False  # all of what is in the written storages

    @property
    def storages(self) -> set[int]:
        return set(_storages(self.tensors))


class DeferredPrograms:
    """All work that has not run yet, in launch order. `observer` sees the accesses of programs that run here."""

    def __init__(self, observer: Callable[[Launched], WrittenBytes]) -> None:
        self._queue: list[_Deferred] = []
        self._observer = observer
        self.added = 0  # so far

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
        names = launched.arguments if written is None else written
        outputs = set(_storages(tensors_in([launched.arguments[name] for name in names])))
        aliases = {name: with_tensors(value, _alias) for name, value in launched.arguments.items()}
        deferred = replace(launched, arguments=aliases)
        self._add(_Deferred(lambda: self._run(deferred, chain([first], programs)), [*tensors_in(aliases)], outputs))

    def add_call(self, call: Callable[..., None], inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
        """Keep `call(output, *inputs)`, which writes the output, for later."""
        aliases = [_alias(tensor) for tensor in (output, *inputs)]
        replaces = output.untyped_storage().nbytes() == output.nbytes
        self._add(_Deferred(lambda: call(*aliases), aliases, set(_storages([output])), replaces))

    def _add(self, deferred: _Deferred) -> None:
        self._queue.append(deferred)
        self.added += 1
        if len(self._queue) > LONG_QUEUE:
            self._drop_unreadable()

    def readable(self) -> int:
        """Return how much work there is whose results somebody can still read."""
        self._drop_unreadable()
        return len(self._queue)

    def run_for(self, tensors: Iterable[torch.Tensor]) -> None:
        """Run the work that these tensors depend on."""
        if self._queue:
            storages = set(_storages(tensors))
            while any(one.storages & storages for one in self._queue):
                self._queue.pop(0).run()  # in order: later work may read what earlier work writes

    def run_all(self) -> None:
        while self._queue:
            self._queue.pop(0).run()

    def _run(self, launched: Launched, programs: Iterator[Program]) -> None:
        observer = self._observer(launched)
        left = interpret_together(launched, observer, list(programs))
        interpret(launched.kernel, launched.grid, launched.arguments, observer, left)
        observer.end()

    def _drop_unreadable(self) -> None:
        """Drop work whose results nobody can read any more: neither the script nor later work."""
        ours: Counter[int] = Counter()
        for one in self._queue:
            ours.update(_storages(one.tensors))
        kept: list[_Deferred] = []
        needed: set[int] = set()
        replaced: set[int] = set()
        for one in reversed(self._queue):
            # One more reference is that of the Python object that `_storages` made.
            dead = all(storage in replaced or _use_count(storage) <= ours[storage] + 1 for storage in one.written)
            if dead and not one.written & needed:
                continue
            kept.insert(0, one)
            read = one.storages
            if one.replaces:
                read = set(_storages(one.tensors[1:]))
                needed -= one.written
                replaced |= one.written
            needed |= read
            replaced -= read
        self._queue = kept


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    for tensor in tensors:
        try:
            yield tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            continue
