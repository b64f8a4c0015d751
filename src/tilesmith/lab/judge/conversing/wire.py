"""Values as JSON for a conversation between two processes. What has no form in JSON stays with its owner, by number."""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_name, dtype_named

MOST_OBJECTS = 100_000
LONGEST_TEXT = 200  # of an object's repr
_REFERENCE = "_reference_of_the_other_side"


class Wire:
    """One end of a conversation: the objects that this end has shown, and those of the other end."""

    def __init__(self, theirs: Callable[[int, str], Any]) -> None:
        """`theirs` makes the stand-in for an object of the other end from its number and its text."""
        self._theirs = theirs
        self._mine: list[Any] = []
        self._known: dict[int, Any] = {}
        self.files: list[Path] = []  # of this end's calls, in the order in which they were sent

    def encode(self, value: Any, *, tensors: bool = True) -> Any:
        """Return a value as JSON. Without `tensors`, these stay here like other objects."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
            return {"number": repr(value)} if isinstance(value, float) and value != value else _plain(value)
        if isinstance(value, torch.Tensor) and tensors and value.device.type == "cpu" and not _is_fake(value):
            return {"tensor": _tensor(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if type(value) in (list, tuple):
            return {type(value).__name__: [self.encode(one, tensors=tensors) for one in value]}
        if type(value) is dict:
            return {"dict": [[self.encode(part, tensors=tensors) for part in pair] for pair in value.items()]}
        if isinstance(value, Path):
            self.files.append(value)
            return {"file": value.name, "text": value.read_text() if value.is_file() else None}
        number = vars(value).get(_REFERENCE) if hasattr(value, "__dict__") else None
        return {"yours": number} if isinstance(number, int) else self._shown(value)

    def decode(self, message: Any, file: Callable[[str, str | None], Path] | None = None) -> Any:
        """Return the value that the other end encoded. `file` makes a file from its name and its text."""
        if message is None or isinstance(message, bool | int | float | str):
            return message
        if not isinstance(message, dict):
            raise NotPlain(f"{type(message).__name__} in place of a value")
        if "tensor" in message:
            return _tensor_from(message["tensor"])
        if "dtype" in message:
            return dtype_named(message["dtype"])
        if "number" in message:
            return float("nan")
        for kind, made in (("list", list), ("tuple", tuple)):
            if kind in message:
                return made(self.decode(one, file) for one in message[kind])
        if "dict" in message:
            return {self.decode(key, file): self.decode(value, file) for key, value in message["dict"]}
        if "yours" in message:
            return self.mine(message["yours"])
        if "file" in message and file is not None:
            return file(str(message["file"]), message["text"])
        if "mine" in message:
            return self._stand_in(message)
        raise NotPlain("an object in place of a value")

    def mine(self, number: Any) -> Any:
        """Return the object that this end has shown under a number."""
        if type(number) is not int or not 0 <= number < len(self._mine):
            raise NotPlain("a reference to nothing")
        return self._mine[number]

    def _shown(self, value: Any) -> dict[str, Any]:
        number = next((at for at, one in enumerate(self._mine) if one is value), len(self._mine))
        if number == len(self._mine):
            if number >= MOST_OBJECTS:
                raise NotPlain("too many objects")
            self._mine.append(value)
        try:
            text = repr(value)[:LONGEST_TEXT]
        except Exception:
            text = f"an object of {type(value).__name__}"
        return {"mine": number, "text": text}

    def _stand_in(self, message: dict[str, Any]) -> Any:
        number = message["mine"]
        if type(number) is not int:
            raise NotPlain("a reference without a number")
        if number not in self._known:
            made = self._theirs(number, str(message.get("text", ""))[:LONGEST_TEXT])
            vars(made)[_REFERENCE] = number
            self._known[number] = made
        return self._known[number]


def _plain(value: Any) -> Any:
    """Return a number or text as a plain one: a subclass could answer differently every time."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Return a tensor with its whole storage, so that strides keep their meaning."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        plain = tensor.detach()
        storage = plain.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
        data = base64.b64encode(whole.numpy().tobytes()).decode()
        layout = [list(plain.size()), list(plain.stride()), plain.storage_offset()]
    return {"data": data, "dtype": dtype_name(tensor.dtype), "layout": layout}


def _tensor_from(message: Any) -> torch.Tensor:
    size, stride, offset = message["layout"]
    whole = torch.frombuffer(bytearray(base64.b64decode(message["data"])) or bytearray(16), dtype=torch.uint8)
    dtype = dtype_named(message["dtype"])
    reach = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
    if offset < 0 or min([*size, *stride], default=0) < 0 or reach * dtype.itemsize > whole.numel():
        raise NotPlain("a tensor outside of its memory")
    return whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(size, stride, offset)
