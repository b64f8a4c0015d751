"""The timing process: replays tapes on the GPU for the judge. It never runs the candidate's Python."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.cuda.launching import CudaKernels
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.replaying.sessions import TapeSession, serve
from tilesmith.lab.judge.timing.clock import Dishonest
from tilesmith.lab.judge.timing.device_sets import DeviceSets, rotation_of
from tilesmith.lab.judge.timing.fresh import FreshInputs

OTHER_INPUTS = 1 << 20  # a replay that no clock has
FEW_REPLAYS = 3  # to choose a configuration


def time_tapes(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    serve(channel, arena, facts, Session)


class Session(TapeSession):
    """Tapes of one candidate. The judge chooses the device; "cpu" interprets, for tests."""

    _sets: DeviceSets | None = None
    _stopwatch: Any = None

    def __init__(self, arena: Arena, folder: Path) -> None:
        super().__init__(arena, folder)
        self._cuda_kernels = CudaKernels(folder.parent)  # where the judge puts device code that it built

    def _kind(self, error: Exception) -> str:
        text = f"{type(error).__module__}.{type(error).__name__}: {error}"
        if isinstance(error, Dishonest):
            return "skipped-work"
        if "triton" in text and any(one in text for one in ("compiler", "OutOfResources", "CompilationError", "PTXAS")):
            return "compile-error"
        return "gpu-error" if "CUDA" in text or "HIP" in text or "Triton Error" in text else "replay-error"

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile the kernels of a tape by running it once, and put the outputs into the arena."""
        device = request["device"]
        stopwatch = self._stopwatch_of(device)
        tape = request["tape"]
        draws = tuple(self._read(places, device) for places in request["draws"])
        inputs = FreshInputs(draws, request["dtypes"], request["seed"])  # type: ignore[arg-type]  # two draws
        constants = {name: self._at(place, device) for name, place in request["constants"].items()}
        self._rotated = rotation_of(tape, stopwatch.cache_bytes)
        self._sets = None  # frees the memory of the last tape
        self._sets = DeviceSets(
            tape, constants, request["outputs"], inputs, self._next_folder(), device=device,
            allow_any=request["allow_any"],
            sets=self._rotated.sets if request["timed"] else 1, cuda=self._cuda_kernels,
        )  # fmt: skip
        given = inputs.at(-2, 0)
        made = self._sets.once(-2)
        stopwatch.synchronize()
        memory = self._sets.memories[0]
        return {
            "outputs": self._all_written(made, request["room"]),
            "guards": memory.guards_hold(),
            "changed_inputs": bool(memory.changed_inputs({name: given[name] for name in memory.inputs})),
            "sets": len(self._sets.memories),
        }

    def _clock(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time the prepared tape."""
        assert self._sets is not None
        replays = {"replays": FEW_REPLAYS} if request["few"] else {}
        times = self._sets.times(self._stopwatch, self._rotated, request["seed"], **replays)
        guards = all(one.guards_hold() for one in self._sets.memories)
        return {
            "median_ms": times.median_ms,
            "spread_ms": times.spread_ms,
            "replays": times.replays,
            "method": times.method,
            "sets": len(self._sets.memories),
            "samples": [list(one) for one in self._sets.samples],
            "guards": guards,
        }

    def _kernel_facts(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what the driver says about the CUDA kernels of a tape."""
        tape = request["tape"]
        used = [step["kernel"] for step in tape["steps"] if "kernel" in step]
        named = {number: tape["kernels"][number] for number in used}
        return {
            "kernels": [
                {"name": str(one["name"]), "line": one["line"], "launches": used.count(number),
                 **self._cuda_kernels.facts(one)}
                for number, one in named.items() if "cuda" in one
            ]
        }  # fmt: skip

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the prepared tape with what its launches store for other inputs."""
        assert self._sets is not None
        room, found = request["room"], []
        for outputs in self._sets.with_other_results(-2, OTHER_INPUTS):
            written = self._all_written(outputs, room)
            room = max((one["at"] for one in written), default=room) + max((one.nbytes for one in outputs), default=0)
            found.append(written)
        return {"outputs": found}

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put the outputs of one sampled replay into the arena."""
        assert self._sets is not None
        replay, place = request["sample"]
        return {"outputs": self._all_written(self._sets.samples[replay, place], request["room"])}

    def _stopwatch_of(self, device: str) -> Any:
        if self._stopwatch is None:
            if device == "cuda":
                import triton

                from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch

                self._stopwatch = GpuStopwatch()
                triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
            else:
                from tilesmith.lab.judge.timing.host_stopwatch import HostStopwatch

                self._stopwatch = HostStopwatch()
        return self._stopwatch

    def _read(self, places: dict[str, list[int]], device: str) -> dict[str, Tensor]:
        return {name: self._at(place, device) for name, place in places.items()}

    def _at(self, place: list[int], device: str) -> Tensor:
        at, length = place
        return self._arena.storage_at(at, length).clone().to(device)

    def _all_written(self, outputs: list[Tensor], room: int) -> list[dict[str, Any]]:
        found = []
        for one in outputs:
            written, room = self._written(one, room)
            found.append(written)
        return found
