"""Copy a task's inputs into shared memory, and copy a candidate's outputs back.

A candidate runs in a process of its own, a child of the judge. Both map the same memory, the arena. The judge sends the
child plain values; a tensor among them is an offset in the arena with a dtype, sizes and strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.isolation.arena import Arena, aligned
from tilesmith.lab.judge.recording import plain_values
from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_name, dtype_named
from tilesmith.lab.judge.task import TaskError

LARGEST_OUTPUT = 256 << 20


class BadOutput(Exception):
    """A child describes an output that cannot be read; the message says why."""


@dataclass
class Laid:
    """Inputs in an arena."""

    encoded: dict[str, Any] = field(default_factory=dict)  # by name, as plain values for the child
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # offset and length; by the offset without shift
    room: int = 0  # the first free offset after the inputs
    shift: int = 0  # bytes by which all storages are moved: no address may decide what a candidate launches


def lay(values: Mapping[str, Any], arena: Arena, start: int = 0, shift: int = 0) -> Laid:
    """Copy the storages of all tensors into the arena from `start` on. Equal shapes get equal offsets, plus shift."""
    laid = Laid(room=aligned(start + shift), shift=aligned(shift))
    known: dict[int, int] = {}

    def tensor(one: Tensor) -> list[Any]:
        storage = one.untyped_storage()
        length = storage.nbytes()
        if storage._cdata not in known:
            known[storage._cdata] = laid.room
            laid.places[str(laid.room - laid.shift)] = (laid.room, length)
            if length:
                content = torch.empty(0, dtype=torch.uint8).set_(storage)
                arena.storage_at(laid.room, length).copy_(content)
            laid.room = aligned(laid.room + max(length, 1))
        size, stride = list(one.size()), list(one.stride())
        return [known[storage._cdata], length, dtype_name(one.dtype), one.storage_offset(), size, stride]

    try:
        laid.encoded = {
            name: plain_values.encode(value.detach() if isinstance(value, Tensor) else value, tensor)
            for name, value in values.items()
        }
    except NotPlain as error:
        raise TaskError(f"an input is a {error}, which a candidate in another process cannot get") from None
    return laid


def changed_tensors(laid: Laid, values: Mapping[str, Any], arena: Arena) -> list[str]:
    """Return the names of the tensors whose memory in the arena no longer holds the given values."""
    changed = []
    for name, value in values.items():
        if isinstance(value, Tensor) and value.untyped_storage().nbytes():
            at, length = laid.places[str(laid.encoded[name]["tensor"][0] - laid.shift)]
            content = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
            if not torch.equal(arena.storage_at(at, length), content):
                changed.append(name)
    return changed


def read_output(facts: Any, arena: Arena) -> Tensor:
    """Return a copy of an output that a child put into the arena. Raises BadOutput."""
    try:
        dtype, size, at = dtype_named(facts["dtype"]), facts["size"], facts["at"]
        elements = _product(size)
        length = elements * dtype.itemsize
        if length > LARGEST_OUTPUT or not isinstance(at, int):
            raise BadOutput(f"an output of {length:,} bytes at {at!r}")
        return arena.storage_at(at, length).clone().view(dtype).view(size) if length else torch.empty(size, dtype=dtype)
    except (KeyError, TypeError, ValueError, RuntimeError, NotPlain) as error:
        raise BadOutput(f"an output that cannot be read ({error})") from None


def _product(size: Sequence[Any]) -> int:
    total = 1
    for one in size:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise ValueError(f"size {one!r}")
        total *= one
    return total
