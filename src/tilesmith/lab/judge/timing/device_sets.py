"""A tape on several input sets of a device: what the clock of the timing process times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timing import CACHES_FILLED, Rotation, Stopwatch
from tilesmith.lab.judge.cuda.launching import CudaKernels
from tilesmith.lab.judge.replaying.device import DeviceMemory, DeviceReplay, Exchange
from tilesmith.lab.judge.replaying.memory import POISON
from tilesmith.lab.judge.timing.clock import REPLAYS, Times, clocked, sampled
from tilesmith.lab.judge.timing.fresh import FreshInputs
from tilesmith.toolchain.interpreter import Launched, interpret
from tilesmith.toolchain.portable import RebuiltKernels

MOST_SETS = 64
MOST_BYTES = 2 << 30  # of all sets


def on_gpu(launched: Launched) -> None:
    """Launch a rebuilt kernel on the current stream."""
    launched.kernel[launched.grid](**launched.arguments, **launched.options)


def interpreted(launched: Launched) -> None:
    """Launch a rebuilt kernel in the interpreter: what tests use in place of a GPU."""
    interpret(launched.kernel, launched.grid, launched.arguments)


class DeviceSets:
    """Several memories for one tape, with fresh inputs for each replay."""

    def __init__(
        self,
        tape: Mapping[str, Any],
        constants: Mapping[str, Tensor],
        outputs: Sequence[Any],
        inputs: FreshInputs,
        folder: Path,
        *,
        device: str,
        allow_any: bool,
        sets: int,
        cuda: CudaKernels | None = None,
    ) -> None:
        kernels = RebuiltKernels(tape["kernels"], folder)
        self._inputs = inputs
        self._outputs = outputs
        self.memories = [DeviceMemory(tape["storages"], constants, device) for _ in range(sets)]
        perform = on_gpu if device == "cuda" else interpreted
        self._replays = [
            DeviceReplay(tape, memory, kernels, perform, allow_any=allow_any, cuda=cuda) for memory in self.memories
        ]
        self.samples: dict[tuple[int, int], list[Tensor]] = {}

    def run(self, place: int) -> None:
        """Run the tape on one input set."""
        self._replays[place].run(tf32=True)

    def once(self, replay: int) -> list[Tensor]:
        """Run the first input set with new inputs, and return the outputs."""
        self._refresh(replay, [0])
        self.run(0)
        return self.outputs(0)

    def with_other_results(self, replay: int, other: int) -> list[list[Tensor]]:
        """Return the outputs for other inputs, for inputs, and for these with the launches of the others."""
        exchange = self._replays[0].exchange = Exchange()
        made = [self._cloned(other)]
        exchange.give_back()
        stale = self._cloned(replay)
        self._replays[0].exchange = None
        return [*made, self._cloned(replay), stale]

    def _cloned(self, replay: int) -> list[Tensor]:
        return [one.clone() for one in self.once(replay)]

    def outputs(self, place: int) -> list[Tensor]:
        return [self.memories[place].tensor(one) for one in self._outputs]

    def times(self, stopwatch: Stopwatch, rotated: Rotation, seed: int, replays: int = REPLAYS) -> Times:
        """Return the times; `samples` then holds copies of the sampled outputs. Raises Dishonest."""
        wanted = dict(sampled(seed, len(self.memories), replays))
        places = list(range(len(self.memories)))

        def seen(number: int) -> str | None:
            if number in wanted:
                place = wanted[number]
                self.samples[number, place] = [one.clone() for one in self.outputs(place)]
            bad = next((place for place in places if self._untouched(place)), None)
            return None if bad is None else f"the launches leave elements of output {bad} of {len(places)} unwritten"

        return clocked(
            stopwatch, [lambda place=place: self.run(place) for place in places], rotated,  # type: ignore[misc]
            fresh=lambda number: self._refresh(number, places), wrong=seen, replays=replays,
        )  # fmt: skip

    def _refresh(self, replay: int, places: Sequence[int]) -> None:
        for place in places:
            self.memories[place].reset()
            self.memories[place].fill(self._inputs.at(replay, place))

    def _untouched(self, place: int) -> bool:
        """Return whether floating-point elements still hold the poison that the judge put there."""
        for one in self.outputs(place):
            if one.is_floating_point() and one.numel() and bool((_as_integers(one) == -1).any()):
                return True
        return False


def _as_integers(tensor: Tensor) -> Tensor:
    """Return the bits of each element as a signed integer; the poison is -1."""
    assert POISON == 0xFF
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(widths[tensor.element_size()])


def rotation_of(tape: Mapping[str, Any], cache_bytes: int) -> Rotation:
    """Return how many input sets a tape needs so that inputs come from memory. The cache is always cleared as well."""
    storages = tape["storages"]
    given = sum(one["bytes"] for one in storages if one["kind"] == "input")
    whole = sum(one["bytes"] for one in storages)
    wanted = CACHES_FILLED * cache_bytes // max(given, 1) + 1
    return Rotation(max(2, min(wanted, MOST_BYTES // max(whole, 1), MOST_SETS)), clears=True)
