"""The timing process: replays tapes on the GPU for the judge. It never runs the candidate's Python."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith import messages
from tilesmith.lab.judge.isolation.arena import Arena, aligned
from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_name
from tilesmith.lab.judge.replaying.memory import BadTape
from tilesmith.lab.judge.replaying.replay import Stopped
from tilesmith.lab.judge.timing.clock import Dishonest
from tilesmith.lab.judge.timing.device_sets import DeviceSets, interpreted, on_gpu, rotation_of
from tilesmith.lab.judge.timing.fresh import FreshInputs
from tilesmith.spec import described
from tilesmith.toolchain.portable import NotPortable

FEW_REPLAYS = 3  # to choose a configuration


def time_tapes(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    folder = Path(tempfile.mkdtemp(prefix="tilesmith-times-"))
    session = Session(arena, folder)
    try:
        while True:
            try:
                request = messages.receive(channel)
            except messages.Closed:
                return
            messages.send(channel, session.answer(request))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Session:
    """Tapes of one candidate. The judge chooses the device; "cpu" interprets, for tests."""

    def __init__(self, arena: Arena, folder: Path) -> None:
        self._arena = arena
        self._folder = folder
        self._sets: DeviceSets | None = None
        self._stopwatch: Any = None
        self._tapes = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return getattr(self, f"_{request['do']}")(request)  # type: ignore[no-any-return]  # dicts, all of them
        except Stopped as stopped:
            return {"stopped": stopped.facts}
        except Dishonest as error:
            return {"stopped": {"kind": "skipped-work", "message": str(error)}}
        except (BadTape, NotPlain, NotPortable) as error:
            return {"stopped": {"kind": "not-portable", "message": f"{error} cannot be replayed"}}
        except Exception as error:
            return {"stopped": {"kind": _kind(error), "message": described(error, __file__)[:500]}}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile the kernels of a tape by running it once, and put the outputs into the arena."""
        device = request["device"]
        stopwatch = self._stopwatch_of(device)
        tape = request["tape"]
        self._tapes += 1
        draws = tuple(self._read(places, device) for places in request["draws"])
        inputs = FreshInputs(draws, request["dtypes"], request["seed"])  # type: ignore[arg-type]  # two draws
        constants = {name: self._at(place, device) for name, place in request["constants"].items()}
        self._rotated = rotation_of(tape, stopwatch.cache_bytes)
        self._sets = None  # frees the memory of the last tape
        self._sets = DeviceSets(
            tape, constants, request["outputs"], inputs, self._folder / str(self._tapes), device=device,
            perform=on_gpu if device == "cuda" else interpreted, allow_any=request["allow_any"],
            sets=self._rotated.sets if request["timed"] else 1,
        )  # fmt: skip
        given = inputs.at(-2, 0)
        made = self._sets.once(-2)
        stopwatch.synchronize()
        memory = self._sets.memories[0]
        return {
            "outputs": self._written(made, request["room"]),
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

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put the outputs of one sampled replay into the arena."""
        assert self._sets is not None
        replay, place = request["sample"]
        return {"outputs": self._written(self._sets.samples[replay, place], request["room"])}

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

    def _written(self, outputs: list[Tensor], room: int) -> list[dict[str, Any]]:
        found = []
        for one in outputs:
            at = aligned(room)
            content = one.contiguous().clone()
            data = torch.empty(0, dtype=torch.uint8, device=content.device).set_(content.untyped_storage())
            if data.numel():
                self._arena.storage_at(at, data.numel()).copy_(data.cpu())
            found.append({"at": at, "dtype": dtype_name(one.dtype), "size": list(one.size())})
            room = at + data.numel()
        return found


def _kind(error: Exception) -> str:
    text = f"{type(error).__module__}.{type(error).__name__}: {error}"
    if "triton" in text and any(word in text for word in ("compiler", "OutOfResources", "CompilationError", "PTXAS")):
        return "compile-error"
    if "CUDA" in text or "HIP" in text or "Triton Error" in text:
        return "gpu-error"
    return "replay-error"
