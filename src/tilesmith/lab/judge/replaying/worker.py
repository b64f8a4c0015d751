"""A clean process that runs tapes for the judge. It keeps the last run, to say who stored an element."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import Any

from tilesmith.lab.judge.isolation.arena import Arena, aligned
from tilesmith.lab.judge.replaying import memory as tape_memory
from tilesmith.lab.judge.replaying.kernel_facts import facts_of, translation_error
from tilesmith.lab.judge.replaying.memory import TapeMemory
from tilesmith.lab.judge.replaying.replay import Replay
from tilesmith.lab.judge.replaying.sessions import TapeSession, serve

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
    serve(channel, arena, facts, _Session)


class _Session(TapeSession):
    def __init__(self, arena: Arena, folder: Path) -> None:
        super().__init__(arena, folder)
        self._last: Replay | None = None
        self._translated: set[str] = set()
        self._changed: dict[int, Any] = {}  # what the last run changed in memory from before the call

    def _prepared(self, request: dict[str, Any]) -> Replay:
        tape = request["tape"]
        sizes = [reference[3] for reference in request["outputs"] if isinstance(reference[3], list)]
        memory = TapeMemory(tape["storages"], request["inputs"], request["constants"], self._arena)
        return Replay(tape, memory, self._next_folder(), allow_any=request["allow_any"], output_sizes=sizes)

    def _replay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the tape, and put the outputs into the arena."""
        stale = self._last.results if request["stale"] and self._last is not None else ()
        run = self._last = self._prepared(request)
        if request["forgets"]:
            run.memory.forget(self._changed)
        run.run(tf32=request["tf32"], backwards=request["backwards"], stale=stale)
        self._changed = run.memory.changed_constants()
        room = aligned(request["room"])
        outputs = []
        for reference in request["outputs"]:
            written, room = self._written(run.memory.tensor(reference), room)
            writers = Counter(run.memory.writer_of(reference).flatten().tolist())
            named = {_WRITERS[writer]: count for writer, count in writers.items()}
            outputs.append({**written, "writers": named, "is_input": reference[0] in run.memory.input_names})
            if set(writers) - {tape_memory.KERNEL}:
                outputs[-1]["writers_at"] = room
                each = run.memory.writer_of(reference).contiguous().flatten()
                self._arena.storage_at(room, each.numel()).copy_(each)
                room = aligned(room + each.numel())
        return {
            "outputs": outputs,
            "faults": run.faults,
            "false_hints": run.has_false_hints,
            "keeps_state": bool(self._changed),
            "changed_inputs": run.memory.changed_inputs(),
            "moved": run.digests,
            "reordering": run.reordering,
            "launches": run.contributing(request["outputs"]),
        }

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._prepared(request)
        kernels = facts_of(run, request["tape"]["steps"], request["targets"])
        for one in kernels:
            one["errors"] = {target: self.without_folder(error) for target, error in one["errors"].items()}
        return {"kernels": kernels}

    def _translate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say which kernel of the tape the compiler's front end rejects."""
        run, steps = self._prepared(request), request["tape"]["steps"]
        found = translation_error(run, steps, request["target"], self._translated)
        return {"error": found and {**found, "error": self.without_folder(found["error"])}}

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
