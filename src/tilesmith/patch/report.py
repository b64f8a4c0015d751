"""The report of `patch`: which parts and fusions it made, which it did not make, and why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FUSIONS = {
    "residual": "each norm and the additions around it stay separate",
    "rotary tables": "cosines and sines are computed again at every step",
    "qk norm": "norms of q and k and the rotation stay separate",
    "qkv projections": "the gradients of q, k and v are added in separate passes",
    "output projection": "the module calls its own output projection",
    "default positions": "transformers checks at every step whether sequences are packed, which waits for the GPU",
    "tied embedding": "PyTorch adds the gradients of embedding and head in a separate pass",
}
"""For each fusion inside a part, what happens in a model without this fusion."""

_logger = logging.getLogger("tilesmith.patch")


class UnknownCodeError(Exception):
    """The installed transformers is written differently from what this version of Tilesmith knows."""

    @classmethod
    def of(cls, method: Callable[..., Any]) -> UnknownCodeError:
        """Return the error for a method whose code is not recognised."""
        return cls(f"{method.__qualname__} is written differently from what this version of Tilesmith knows")


class Swapped(NamedTuple):
    """How many modules got our forward, and why others did not; the reason is None where all did."""

    modules: int
    reason: str | None


@dataclass
class Report:
    """What `patch` did to a model.

    A part is a switch of `patch`; `swapped` counts its modules that run our operators, and `left` says why a part, or
    some of its modules, stay as they are. A fusion is an optimisation inside a part (`FUSIONS`); `fused` and
    `not_fused` say the same of fusions. `unrecognised` names the parts and fusions that are missing because the
    installed transformers is written differently; `patch` logs a warning about those. `foreign` says that the model
    is not transformers' own.
    """

    model: str
    swapped: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    fused: dict[str, int] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    unrecognised: list[str] = field(default_factory=list)
    foreign: bool = False

    def __str__(self) -> str:
        lines = [f"{self.model}: {_counted(self.swapped)} by Tilesmith", f"fused: {_counted(self.fused)}"]
        where = "as is" if self.foreign else "to transformers"
        lines += [f"{part} left {where}: {reason}" for part, reason in self.left.items()]
        return "\n".join(lines + [f"{fusion} not fused: {reason}" for fusion, reason in self.not_fused.items()])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record the part as left where the block meets code that is not recognised."""
        try:
            yield
        except UnknownCodeError as reason:
            self.left[name] = str(reason)
            self._mark_unrecognised(name)

    @contextmanager
    def fusion(self, name: str) -> Iterator[None]:
        """Record the fusion as not made where the block meets code that is not recognised."""
        try:
            yield
        except UnknownCodeError as reason:
            self.record_fusion(name, Swapped(0, str(reason)))
            self._mark_unrecognised(name)

    def _mark_unrecognised(self, name: str) -> None:
        if name not in self.unrecognised:
            self.unrecognised.append(name)

    def record_part(self, name: str, swapped: Swapped) -> None:
        """Record how many modules of a part were swapped, and why others were not."""
        if swapped.modules:
            self.swapped[name] = swapped.modules
        if swapped.reason:
            self.left[name] = swapped.reason

    def record_fusion(self, name: str, swapped: Swapped) -> None:
        """Record how many modules have a fusion, and why others do not."""
        if swapped.modules:
            self.fused[name] = self.fused.get(name, 0) + swapped.modules
        if swapped.reason:
            self.not_fused[name] = f"{swapped.reason}; {FUSIONS[name]}"

    def warn(self) -> None:
        """Log what is missing because transformers is written differently, each message once per process."""
        for name in self.unrecognised:
            _warn_once(f"patch: {self.model}: {name}: {self.left.get(name) or self.not_fused[name]}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items()) or "nothing"


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)
