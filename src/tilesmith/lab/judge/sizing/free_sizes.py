"""Other sizes than a task gives: whole numbers, and tuples and lists of them, such as lengths of sequences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MOST_ENTRIES = 64


def entries_of(size: Any) -> list[Any]:
    """Return the entries of a tuple or list, or the size itself as the only one."""
    return list(size) if isinstance(size, tuple | list) else [size]


def largest_of(size: Any) -> int:
    """Return the largest entry; 0 where no entry is a whole number."""
    return max((one for one in entries_of(size) if isinstance(one, int)), default=0)


def is_free(given: Sequence[Any]) -> bool:
    """Return whether sizes are whole numbers, alone or in tuples and lists, and some entry is odd and above one."""
    entries = [one for size in given for one in entries_of(size)]
    kinds = {isinstance(size, int) for size in given}
    return len(kinds) == 1 and all(isinstance(one, int) for one in entries) and any(n % 2 and n > 1 for n in entries)


def redrawn(like: Any, given: Sequence[Any], chance: random.Random, draw: Callable[[int], int]) -> Any:
    """Return a size with other entries: as many as `like` has, or another number where the given sizes differ in it."""
    if isinstance(like, int):
        return draw(like)
    entries, count = entries_of(like), len(like)
    if has_free_count(given):
        lengths = [len(size) for size in given]
        count = chance.randint(min(1, *lengths), 2 * max(lengths))
        entries = entries or [one for size in given for one in size]
    return _like(like, (draw(entries[place % len(entries)]) for place in range(count)))


def has_free_count(given: Sequence[Any]) -> bool:
    """Return whether tuples or lists differ in their number of entries."""
    return len({len(entries_of(size)) for size in given}) > 1


def with_number(size: Any, number: int, given: Sequence[Any], chance: random.Random) -> list[Any]:
    """Return sizes that show a number: as an entry, as the sum of entries, and as how many there are."""
    entries = entries_of(size)
    if isinstance(size, int) or not entries:
        return [number] if isinstance(size, int) else []
    place = chance.randrange(len(entries))
    rest = number - sum(entries) + entries[place]
    found = [_with_entry(size, place, one) for one in dict.fromkeys((number, rest)) if one > 0]
    if has_free_count(given) and number <= MOST_ENTRIES:
        found.append(_like(size, (entries[one % len(entries)] for one in range(number))))
    return found


def filled(size: Any, entry: int) -> Any:
    """Return the size with one value for all entries."""
    return entry if isinstance(size, int) else _like(size, [entry] * len(size))


def scaled(size: Any, factor: float) -> Any:
    """Return the size with each entry times a factor. Entries of a tuple or list do not become zero."""
    if isinstance(size, int):
        return int(size * factor)
    return _like(size, (max(min(one, 1), int(one * factor)) for one in size))


def _with_entry(size: Any, place: int, entry: int) -> Any:
    return _like(size, [*size[:place], entry, *size[place + 1 :]])


def _like(size: Any, entries: Iterable[int]) -> Any:
    return list(entries) if isinstance(size, list) else tuple(entries)
