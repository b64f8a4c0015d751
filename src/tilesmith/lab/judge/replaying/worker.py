"""A clean process that runs tapes for the judge. It keeps the last run, to say who stored an element."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tilesmith import messages
from tilesmith.lab.judge.isolation.arena import Arena, aligned
from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_name
from tilesmith.lab.judge.replaying import memory as tape_memory
from tilesmith.lab.judge.replaying.kernel_facts import facts_of
from tilesmith.lab.judge.replaying.memory import BadTape, TapeMemory
from tilesmith.lab.judge.replaying.replay import Replay, Stopped
from tilesmith.spec import described
from tilesmith.toolchain.portable import NotPortable

_WRITERS = {
    tape_memory.NOBODY: "nobody",
    tape_memory.KERNEL: "kernel",
    tape_memory.FILL: "fill",
    tape_memory.INPUT: "input",
    tape_memory.CONSTANT: "constant",
    tape_memory.PYTORCH: "pytorch",
}


def replay(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    folder = Path(tempfile.mkdtemp(prefix="tilesmith-replay-"))
    session = _Session(arena, folder)
    try:
        while True:
            try:
                request = messages.receive(channel)
            except messages.Closed:
                return
            messages.send(channel, session.answer(request))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Session:
    def __init__(self, arena: Arena, folder: Path) -> None:
        self._arena = arena
        self._folder = folder
        self._last: Replay | None = None
        self._runs = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return getattr(self, f"_{request['do']}")(request)  # type: ignore[no-any-return]  # dicts, all of them
        except Stopped as stopped:
            return {"stopped": stopped.facts}
        except (BadTape, NotPlain, NotPortable) as error:
            return {"stopped": {"kind": "not-portable", "message": f"{error} cannot be replayed"}}
        except Exception as error:  # the tape comes from the candidate: whatever it causes is a reason, not a crash
            message = f"the replay fails: {described(error, __file__)}"
            return {"stopped": {"kind": "replay-error", "message": message[:500]}}

    def _prepared(self, request: dict[str, Any]) -> Replay:
        tape = request["tape"]
        self._runs += 1
        memory = TapeMemory(tape["storages"], request["inputs"], request["constants"], self._arena)
        return Replay(tape, memory, self._folder / str(self._runs), allow_any=request["allow_any"])

    def _replay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the tape, and put the outputs into the arena."""
        run = self._last = self._prepared(request)
        run.run(tf32=request["tf32"])
        room = aligned(request["room"])
        outputs = []
        for reference in request["outputs"]:
            tensor = run.memory.tensor(reference).contiguous().clone()
            content = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            if content.numel():
                self._arena.storage_at(room, content.numel()).copy_(content)
            writers = Counter(run.memory.writer_of(reference).flatten().tolist())
            outputs.append(
                {
                    "at": room,
                    "dtype": dtype_name(tensor.dtype),
                    "size": list(tensor.size()),
                    "writers": {_WRITERS[writer]: count for writer, count in writers.items()},
                    "is_input": reference[0] in run.memory.input_names,
                }
            )
            room = aligned(room + content.numel())
            if set(writers) - {tape_memory.KERNEL}:
                outputs[-1]["writers_at"] = room
                each = run.memory.writer_of(reference).contiguous().flatten()
                self._arena.storage_at(room, each.numel()).copy_(each)
                room = aligned(room + each.numel())
        return {
            "outputs": outputs,
            "faults": run.faults,
            "changed_inputs": run.memory.changed_inputs(),
            "moved": run.digests,
            "launches": run.contributing(request["outputs"]),
        }

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._prepared(request)
        return {"kernels": facts_of(run, request["tape"]["steps"], request["targets"])}

    def _writer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say who stored an element of an output of the last run."""
        if self._last is None:
            return {"writer": None}
        tensor = self._last.memory.tensor(request["reference"])
        index = [int(one) for one in request["index"]]
        found = self._last.stores.writer_of(tensor, index)
        if found is None:
            writers = self._last.memory.writer_of(request["reference"])
            return {"writer": None, "by": _WRITERS[int(writers[tuple(index)])]}
        return {
            "writer": {
                "kernel": found.kernel,
                "program": list(found.program),
                "file": Path(found.file).name,
                "line": found.line,
            },
            "by": "kernel",
        }
