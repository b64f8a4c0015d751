"""Another order where Triton promises none: operands of a reduction, elements of `tl.cat` and of some reshapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

_chosen = [False]


@contextmanager
def in_other_order() -> Iterator[None]:
    """Combine and arrange elements in another order than usual. A kernel that needs the usual one is then wrong."""
    before, _chosen[0] = _chosen[0], True
    try:
        yield
    finally:
        _chosen[0] = before


def is_other_order() -> bool:
    """Return whether the other order is wanted."""
    return _chosen[0]


def reordered(data: NDArray[Any]) -> NDArray[Any]:
    """Return elements that may stand in any order: in the other order, backwards."""
    return data.reshape(-1)[::-1].reshape(data.shape) if is_other_order() else data
