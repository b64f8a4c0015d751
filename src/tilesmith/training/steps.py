"""One training step: forward, backward, update. Run phase by phase, or captured in a CUDA graph and replayed.

A step reads its batch from buffers that stay where they are and leaves its loss in one, and never waits for the device:
that is what lets it be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tilesmith.ops.runtime.side_stream import SideStream
from tilesmith.training.guard import GradientGuard

Batch = tuple[Tensor, ...]
"""What the model is called with; its first dimension counts samples."""

EAGER_STEPS = 3
"""Steps before the capture: by then kernels are compiled, libraries have their workspaces, the optimiser its state."""


@dataclass(frozen=True)
class Phase:
    name: str  # "forward", "backward" or "optimizer"
    run: Callable[[], None]


def _always_together(last: bool) -> AbstractContextManager[None]:
    return nullcontext()


class Step:
    """`load` a batch, then call it. The batch is taken in as many equal pieces as `accumulate` says.

    The loss is the mean over the whole batch, however it is divided.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        guard: GradientGuard,
        example: Batch,
        *,
        accumulate: int = 1,
        synchronised: Callable[[bool], AbstractContextManager[None]] = _always_together,
    ) -> None:
        """`synchronised(last)` surrounds each piece: processes exchange gradients with the last alone."""
        self._model = model
        self._optimizer = optimizer
        self._guard = guard
        self._synchronised = synchronised
        self._buffers = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in example)
        self._pieces = [
            tuple(pieces)
            for pieces in zip(*(buffer.chunk(accumulate) for buffer in self._buffers), strict=True)
        ]  # fmt: skip
        self._pending: Tensor | None = None
        self.loss = torch.zeros((), dtype=torch.float32, device=example[0].device)

    def load(self, batch: Batch) -> None:
        for buffer, tensor in zip(self._buffers, batch, strict=True):
            buffer.copy_(tensor, non_blocking=True)

    def __call__(self) -> None:
        self.run_passes()
        self.update()

    def phases(self) -> list[Phase]:
        """What a step does, in order."""
        return [*self.passes(), Phase("optimizer", self.update)]

    def passes(self) -> list[Phase]:
        """All but the update."""
        return [
            phase
            for place in range(len(self._pieces))
            for phase in (
                Phase("forward", lambda place=place: self._forward(place)),  # type: ignore[misc]  # a default it binds
                Phase("backward", lambda place=place: self._backward(place)),  # type: ignore[misc]  # likewise
            )
        ]

    def run_passes(self) -> None:
        for phase in self.passes():
            phase.run()

    def update(self) -> None:
        with SideStream(self.loss) as side_stream:
            side_stream(self._guard.observe)  # which reads the gradients, as the optimiser does, and neither waits
            self._optimizer.step()

    def clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _forward(self, place: int) -> None:
        if place == 0:
            self.clear_gradients()
            self.loss.zero_()
        with self._synchronised(place == len(self._pieces) - 1):
            loss = self._model(*self._pieces[place])
            self._pending = loss / len(self._pieces) if len(self._pieces) > 1 else loss
            self.loss.add_(self._pending.detach())

    def _backward(self, place: int) -> None:
        assert self._pending is not None
        with self._synchronised(place == len(self._pieces) - 1):
            self._pending.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._pending = None


class CapturedStep:
    """The same step as one CUDA graph. The first steps run as they are; all of them count.

    Without `update` the graph ends with the backward, and the host launches the optimiser, which finds its gradients
    in the graph's memory.
    """

    def __init__(self, step: Step, *, update: bool = True) -> None:
        self._step = step
        self._captures_update = update
        # Before what is computed beside it: with both alike, a step of Tiny OpenFold takes 8.13 ms instead of 7.94.
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._taken = 0
        self._replay: Callable[[], None] | None = None

    @property
    def loss(self) -> Tensor:
        return self._step.loss

    def load(self, batch: Batch) -> None:
        self._step.load(batch)

    def __call__(self) -> None:
        if self._taken < EAGER_STEPS:
            self._on_own_stream(self._step)
        else:
            if self._replay is None:
                self._step.clear_gradients()  # so that those of the graph lie in its own memory
                action = self._step if self._captures_update else self._step.run_passes
                (self._replay,) = capture([action], self._stream)
            self._replay()
            if not self._captures_update:
                self._step.update()
        self._taken += 1

    def phases(self) -> list[Phase]:
        """A graph for each phase instead of one for all, for timing them."""
        if self._taken <= EAGER_STEPS:
            return self._step.phases()
        self._replay = None  # and its memory
        self._step.clear_gradients()
        phases = self._step.phases()
        captured = phases if self._captures_update else self._step.passes()
        replays = capture([phase.run for phase in captured], self._stream)
        replayed = [Phase(phase.name, replay) for phase, replay in zip(captured, replays, strict=True)]
        return [*replayed, *phases[len(captured) :]]

    def _on_own_stream(self, action: Callable[[], None]) -> None:
        """A backward runs on the stream of its forward, and the default stream cannot be captured."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            action()
        torch.cuda.current_stream().wait_stream(self._stream)


def capture(actions: Sequence[Callable[[], None]], stream: torch.cuda.Stream) -> list[Callable[[], None]]:
    """A graph of each action, in memory that they share: they must be replayed in this order."""
    pool = torch.cuda.graph_pool_handle()
    replays: list[Callable[[], None]] = []
    torch.cuda.synchronize()
    for action in actions:
        graph = torch.cuda.CUDAGraph()
        # Backward passes run in threads of PyTorch's own, which the other modes would refuse.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            action()
        replays.append(graph.replay)
    return replays
