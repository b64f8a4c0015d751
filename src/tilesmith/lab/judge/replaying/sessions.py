"""What the processes that run tapes share: the loop of requests, and how errors and outputs are answered."""

from __future__ import annotations

import re
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
from tilesmith.spec import described
from tilesmith.toolchain.portable import NotPortable


class TapeSession:
    """Tapes of one candidate. A request names the method that answers it."""

    def __init__(self, arena: Arena, folder: Path) -> None:
        self._arena = arena
        self._folder = folder
        self._tapes = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return getattr(self, f"_{request['do']}")(request)  # type: ignore[no-any-return]  # dicts, all of them
        except Stopped as stopped:
            return {"stopped": {**stopped.facts, "message": self.without_folder(stopped.facts["message"])}}
        except (BadTape, NotPlain, NotPortable) as error:
            return {"stopped": {"kind": "not-portable", "message": f"{error} cannot be replayed"}}
        except Exception as error:  # the tape comes from the candidate: whatever it causes is a reason, not a crash
            message = f"the replay fails: {described(error, __file__)}"
            return {"stopped": {"kind": self._kind(error), "message": self.without_folder(message)[:500]}}

    def without_folder(self, message: str) -> str:
        """Return a message with files named as in the candidate, not as in this process."""
        return re.sub(rf"{re.escape(str(self._folder))}/\d+/\d+/", "", message)

    def _kind(self, error: Exception) -> str:
        return "replay-error"

    def _next_folder(self) -> Path:
        """Return the folder for the kernels of one more tape."""
        self._tapes += 1
        return self._folder / str(self._tapes)

    def _written(self, output: Tensor, room: int) -> tuple[dict[str, Any], int]:
        """Copy an output into the arena. Return its description, and the room after it."""
        at = aligned(room)
        content = output.contiguous().clone()
        data = torch.empty(0, dtype=torch.uint8, device=content.device).set_(content.untyped_storage())
        if data.numel():
            self._arena.storage_at(at, data.numel()).copy_(data.cpu())
        return {"at": at, "dtype": dtype_name(output.dtype), "size": list(output.size())}, aligned(at + data.numel())


def serve(channel: socket.socket, arena: Arena, facts: dict[str, Any], kind: type[TapeSession]) -> None:
    """Answer requests until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    session = kind(arena, Path(tempfile.mkdtemp(dir=facts["scratch"])))  # which the judge removes
    while True:
        try:
            request = messages.receive(channel)
        except messages.Closed:
            return
        messages.send(channel, session.answer(request))
