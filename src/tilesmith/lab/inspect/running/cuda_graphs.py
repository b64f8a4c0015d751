"""CUDA graphs without a GPU: calls run during capture, and again at each replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Call = Callable[[], Any]

_captures: list[list[Call]] = []
_noting = [True]


class Graph:
    """The calls of one capture."""

    def __init__(self, *unused: Any, **options: Any) -> None:
        self._calls: list[Call] = []

    def capture_begin(self, *unused: Any, **options: Any) -> None:
        self._calls.clear()
        _captures.append(self._calls)

    def capture_end(self) -> None:
        _captures.remove(self._calls)

    def replay(self) -> None:
        for call in self._calls:
            call()

    def reset(self) -> None:
        self._calls.clear()

    def pool(self) -> tuple[int, int]:
        return 0, 0

    def instantiate(self) -> None:
        """Do nothing: the calls of a capture can be replayed as they are."""

    def enable_debug_mode(self) -> None:
        """Do nothing, as there is no graph of CUDA's to show."""

    def debug_dump(self, path: str) -> None:
        """Write nothing."""


@contextmanager
def captured(graph: Any, *unused: Any, **options: Any) -> Iterator[None]:
    """Capture the calls inside the context, as `torch.cuda.graph` does."""
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


def is_capturing() -> bool:
    """Return whether a call belongs to a graph."""
    return bool(_captures) and _noting[0]


def noted(call: Call, again: Call | None = None) -> Any:
    """Call now, and call `again` at each replay. Tensors that a replay returns are copied to those of this call."""
    if not is_capturing():
        return call()
    calls = _captures[-1]
    _noting[0] = False  # what the call calls belongs to it
    try:
        result = call()
    finally:
        _noting[0] = True
    calls.append(lambda: _copy((again or call)(), result))
    return result


def _copy(source: Any, target: Any) -> None:
    with torch.no_grad():
        for new, old in zip(tree_leaves(source), tree_leaves(target), strict=True):
            if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                old.copy_(new)
