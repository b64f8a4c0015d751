"""New inputs for every replay: each element of a floating-point input comes from one of two draws of the task.

Which draw, random bits decide. They follow from a seed that the candidate does not know, so the judge and the timing
process make the same inputs without sending them. Integers, and inputs with a fixed form, come whole from one draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilesmith.lab.judge.recording.plain_values import dtype_name, dtype_named

Bytes = Mapping[str, Tensor]


def storages_in(values: Any) -> list[Tensor]:
    """Return one tensor for each storage inside inputs, in the order in which they are laid out."""
    found: dict[int, Tensor] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            found.setdefault(value.untyped_storage()._cdata, value)
        elif isinstance(value, Mapping):
            for one in value.values():
                visit(one)
        elif isinstance(value, list | tuple):
            for one in value:
                visit(one)

    visit(values)
    return list(found.values())


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def mixable(inputs: Mapping[str, Any], fixed: Sequence[str]) -> list[str | None]:
    """Return for each storage the dtype in which its elements may be mixed; None for those that stay whole."""
    kept = {one.untyped_storage()._cdata for name in fixed for one in storages_in(inputs.get(name))}
    return [
        dtype_name(one.dtype) if one.is_floating_point() and one.untyped_storage()._cdata not in kept else None
        for one in storages_in(inputs)
    ]


def mixed(one: Tensor, other: Tensor, dtype: str | None, key: Sequence[int]) -> Tensor:
    """Return bytes whose elements come from one of two storages. The key decides which."""
    chance = np.random.Generator(np.random.PCG64(list(key)))
    if dtype is None:
        return one if chance.integers(2) else other
    kind = dtype_named(dtype)
    first, second = one.view(kind), other.view(kind)
    packed = torch.from_numpy(chance.integers(256, size=-(-first.numel() // 8), dtype=np.uint8)).to(one.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=one.device)
    choice = ((packed[:, None] >> shifts) & 1).bool().flatten()[: first.numel()]
    return torch.where(choice, first, second).view(torch.uint8)


class FreshInputs:
    """Two draws by storage. `at(replay, place)` gives the bytes of one input set in one replay."""

    def __init__(self, draws: tuple[Bytes, Bytes], dtypes: Mapping[str, str | None], seed: int) -> None:
        self._draws, self._dtypes, self._seed = draws, dtypes, seed

    def at(self, replay: int, place: int) -> dict[str, Tensor]:
        one, other = self._draws
        return {
            name: mixed(one[name], other[name], dtype, (self._seed, replay + 2, place, number))
            for number, (name, dtype) in enumerate(self._dtypes.items())
        }
