"""Work that nothing waits for, beside the work that everything waits for.

In a backward, the gradients of weights are read by nobody before the optimiser, while those of activations are a chain
in which each kernel waits for the one before. A GPU that a link of the chain does not fill can do both at once, if they
are on two streams. That costs the host two events for each, so it is done only while a CUDA graph is captured, which
keeps them as edges; elsewhere everything runs in order, where it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

_sides: dict[Any, Any] = {}
"""For each stream that was captured, the one beside it."""


class Beside:
    """Inside `with Beside(x) as beside:`, `beside(function, *arguments)` is the function's result. It may be used after
    the block, or by a later function in it, but not by the block itself.

    What makes this safe with memory that is given out again as soon as Python lets go of it, in the order of one
    stream's work:

    - what the function reads is kept until the end of the block, where the main stream waits for the side stream:
      memory of the main stream is not given out again while the side stream reads it;
    - every function starts by waiting for all that the main stream has been given so far. Memory of the side stream,
      of results whose last reader is on the main stream, is given out again only by a later function, which so waits
      for that reader;
    - whatever else the function allocates, it lets go of, and only the side stream has it.

    The main stream must not be given anything from inside a function, which is on the other stream.
    """

    def __init__(self, x: Tensor) -> None:
        self._main = torch.cuda.current_stream(x.device) if _is_captured(x) else None
        self._kept: list[tuple[Any, ...]] = []

    @property
    def is_apart(self) -> bool:
        """Whether there is another stream; else it is not worth taking apart what is computed at once."""
        return self._main is not None

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        if self._main is None:
            return function(*arguments)
        side = _side_of(self._main)
        side.wait_stream(self._main)
        self._kept.append(arguments)
        with torch.cuda.stream(side):
            return function(*arguments)

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept and self._main is not None:
            self._main.wait_stream(_side_of(self._main))
        self._kept.clear()


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _side_of(main: Any) -> Any:
    """Streams are taken from a small number of them in turn, so a new one may be the same as the main one."""
    while _sides.get(main, main) == main:
        _sides[main] = torch.cuda.Stream(main.device)
    return _sides[main]
