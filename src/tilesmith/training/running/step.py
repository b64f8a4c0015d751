"""One training step: forward, backward, update. It runs eagerly, or is captured in a CUDA graph and replayed.

A step reads its batch from fixed buffers, writes its loss to a fixed buffer, and never waits for the device, so a CUDA
graph can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.training.data.tasks import Batch
from tilesmith.training.running.gradient_guard import GradientGuard

EAGER_STEPS = 3
"""Steps before the capture. They compile kernels, and allocate library workspaces and the optimiser's state."""


@dataclass(frozen=True)
class Phase:
    name: str  # "forward", "backward" or "optimizer"
    run: Callable[[], None]


def _always_synchronised(last: bool) -> AbstractContextManager[None]:
    return nullcontext()


class Step:
    """Call `load` with a batch, then call the step. `accumulate` is the number of equal micro-batches.

    The loss is the mean over the whole batch for any number of micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        guard: GradientGuard,
        example: Batch,
        *,
        accumulate: int = 1,
        synchronised: Callable[[bool], AbstractContextManager[None]] = _always_synchronised,
    ) -> None:
        """`synchronised(last)` surrounds each micro-batch; processes exchange gradients only in the last one."""
        self._model = model
        self._optimizer = optimizer
        self._guard = guard
        self._synchronised = synchronised
        self._buffers = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in example)
        self._micro_batches = [
            tuple(parts)
            for parts in zip(*(buffer.chunk(accumulate) for buffer in self._buffers), strict=True)
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
        """Return the phases of a step, in order."""
        return [*self.passes(), Phase("optimizer", self.update)]

    def passes(self) -> list[Phase]:
        """Return the phases of a step without the update."""
        return [
            phase
            for place in range(len(self._micro_batches))
            for phase in (
                Phase("forward", lambda place=place: self._forward(place)),  # type: ignore[misc]  # the default binds place
                Phase("backward", lambda place=place: self._backward(place)),  # type: ignore[misc]  # as above
            )
        ]

    def run_passes(self) -> None:
        for phase in self.passes():
            phase.run()

    def update(self) -> None:
        with SideStream(self.loss) as side_stream:
            side_stream(self._guard.observe)  # guard and optimiser both only read the gradients
            self._optimizer.step()

    def clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _forward(self, place: int) -> None:
        if place == 0:
            self.clear_gradients()
            self.loss.zero_()
        with self._synchronised(place == len(self._micro_batches) - 1):
            loss = self._model(*self._micro_batches[place])
            self._pending = loss / len(self._micro_batches) if len(self._micro_batches) > 1 else loss
            self.loss.add_(self._pending.detach())

    def _backward(self, place: int) -> None:
        assert self._pending is not None
        with self._synchronised(place == len(self._micro_batches) - 1):
            self._pending.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        self._pending = None


class CapturedStep:
    """A step as one CUDA graph. The first `EAGER_STEPS` steps run eagerly and train the model as well.

    With update=False the graph ends after the backward, and the host launches the optimiser, which reads the gradients
    from the graph's memory.
    """

    def __init__(self, step: Step, *, update: bool = True) -> None:
        self._step = step
        self._captures_update = update
        # Priority over the side stream: with equal priorities a step of Tiny OpenFold takes 8.13 ms instead of 7.94.
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
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
                self._step.clear_gradients()  # so that the graph allocates gradients in its own memory
                action = self._step if self._captures_update else self._step.run_passes
                (self._replay,) = capture([action], self._stream)
            self._replay()
            if not self._captures_update:
                self._step.update()
        self._taken += 1

    def phases(self) -> list[Phase]:
        """Return the phases with one graph each, for timing."""
        if self._taken <= EAGER_STEPS:
            return self._step.phases()
        self._replay = None  # frees the graph's memory
        self._step.clear_gradients()
        phases = self._step.phases()
        captured = phases if self._captures_update else self._step.passes()
        replays = capture([phase.run for phase in captured], self._stream)
        replayed = [Phase(phase.name, replay) for phase, replay in zip(captured, replays, strict=True)]
        return [*replayed, *phases[len(captured) :]]

    def _on_own_stream(self, action: Callable[[], None]) -> None:
        """Run on the capture stream: a backward uses its forward's stream, and no graph captures the default one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            action()
        torch.cuda.current_stream().wait_stream(self._stream)


def capture(actions: Sequence[Callable[[], None]], stream: torch.cuda.Stream) -> list[Callable[[], None]]:
    """Return a replay for each action. The graphs share memory, so they must be replayed in this order."""
    pool = torch.cuda.graph_pool_handle()
    replays: list[Callable[[], None]] = []
    torch.cuda.synchronize()
    for action in actions:
        graph = torch.cuda.CUDAGraph()
        # Backward passes run in PyTorch's own threads, which the other modes reject.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            action()
        replays.append(graph.replay)
    return replays
