"""Blocks that several programs share: of a matrix product, all programs in a row of tiles load the same operand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Places = NDArray[np.intp]


@dataclass(frozen=True)
class Shared:
    """Fewer different values than programs: program p has row `places[p]` of `values`, an array or a list of arrays."""

    values: Any
    places: Places

    def of_each_program(self) -> Any:
        """Return one row for each program."""
        if isinstance(self.values, list):
            return [rows_at(one, self.places) for one in self.values]
        return rows_at(self.values, self.places)


def rows_at(values: Any, places: Places) -> Any:
    """Return rows of an array, or of what has a method `rows_at`. A single row is one of all programs."""
    if not isinstance(values, np.ndarray):
        return values.rows_at(places)
    if len(values) == 1:
        return values
    own = [slice(0, 1) if stride == 0 else slice(None) for stride in values.strides[1:]]  # copy nothing twice
    index = (slice(None), *own)
    return np.broadcast_to(values[index][places], (places.size, *values.shape[1:]))


def has_rows(value: Any) -> bool:
    """Return whether programs differ in a value: an array, a list of arrays, a tile, or None."""
    fields = getattr(value, "fields", None)
    if fields is not None:
        return any(len(one.data) > 1 for one in fields)
    return value is not None and len(value[0] if isinstance(value, list) else value) > 1


def common_places(inputs: Iterable[Any]) -> Places | None:
    """Return the places that the inputs of an operation share; None where it needs a row for each program."""
    values = list(inputs)
    found = {id(one.places): one.places for one in values if isinstance(one, Shared)}
    if len(found) != 1 or any(has_rows(one) for one in values if not isinstance(one, Shared)):
        return None
    return found.popitem()[1]


class Sharing:
    """Finds programs with equal scalars. Equal groups of programs get the same array of places."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Places] = {}

    def grouped(self, scalars: list[Array]) -> tuple[list[Array], Places | None]:
        """Return the scalars of one program of each group, and the group of each program; None for a single group.

        Each array has one element for each program, or a single one. Where sharing saves too little, all programs stay.
        """
        columns = [one.reshape(-1).tolist() for one in scalars if one.size > 1]
        if not columns or any(one.dtype.kind not in "iub" for one in scalars):
            return scalars, None
        groups: dict[Any, int] = {}
        found = tuple([groups.setdefault(key, len(groups)) for key in zip(*columns, strict=True)])
        if 2 * len(groups) > len(found):
            return scalars, None
        places = self._known.setdefault(found, np.array(found, dtype=np.intp))
        firsts = np.unique(places, return_index=True)[1]
        return [one[firsts] if one.size > 1 else one for one in scalars], places if len(groups) > 1 else None


def product(places: Sequence[Places], left: Array, right: Array, addend: Array) -> Array:
    """Return left · right + addend of each program. `places` has the rows of the three for each program."""
    total = np.empty((places[0].size, left.shape[-2], right.shape[-1]), np.result_type(left, right, addend))
    for one, *rows in zip(total, *(each.tolist() for each in places), strict=True):
        np.matmul(left[rows[0]], right[rows[1]], out=one)
        one += addend[rows[2]]  # while it is in the cache
    return total
