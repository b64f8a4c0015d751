"""A second CUDA stream for work that nothing waits for.

In a backward, only the optimiser reads the gradients of weights. The gradients of activations are a chain: each kernel
waits for the one before. A GPU that one kernel of the chain does not fill can do both at once, on two streams. Two
streams cost the host two events for each use. So they are used only while a CUDA graph is captured: the graph keeps the
events as edges. Elsewhere everything runs in order on one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

_side_streams: dict[Any, Any] = {}
"""For each stream that was captured, its side stream."""


class SideStream:
    """Runs functions on a side stream: `with SideStream(x) as side_stream: y = side_stream(function, *arguments)`.

    The results may be used after the block, or by a later function on the side stream, but not by the block itself. A
    function must not put work on the main stream.

    PyTorch's allocator reuses freed memory in the order of one stream. This is safe here because:

    - the arguments are kept until the end of the block, where the main stream waits for the side stream. So no memory
      of the main stream is reused while the side stream reads it;
    - each function first waits for all work that is on the main stream so far. So memory of the side stream whose last
      reader is on the main stream is reused only after that reader;
    - everything else that a function allocates and frees is used by the side stream alone.
    """

    def __init__(self, x: Tensor) -> None:
        self._main = torch.cuda.current_stream(x.device) if _is_captured(x) else None
        self._kept: list[tuple[Any, ...]] = []

    @property
    def is_separate(self) -> bool:
        """Whether functions run on another stream. If not, computing everything at once is cheaper."""
        return self._main is not None

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        if self._main is None:
            return function(*arguments)
        side = _side_of(self._main)
        side.wait_stream(self._main)
        self._kept.append(arguments)
        with torch.cuda.stream(side):
            return function(*arguments)

    def __enter__(self) -> SideStream:
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
    """Return the side stream of a stream. PyTorch draws streams from a small pool, so a new one may be `main` again."""
    while _side_streams.get(main, main) == main:
        _side_streams[main] = torch.cuda.Stream(main.device)
    return _side_streams[main]
