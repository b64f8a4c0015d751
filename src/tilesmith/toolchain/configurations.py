"""Take an autotuner's configurations by their number: times in the interpreter mean nothing, so each one is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton.runtime.jit import JITFunction

_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


class Configurations:
    """Chooses the configuration with one number, and remembers what each autotuned kernel offers."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._offered: dict[str, list[str]] = {}
        self._computations: dict[str, list[Any]] = {}

    def chosen(self, candidates: Sequence[Any], kernel: Any) -> Any:
        """Return one of an autotuner's configurations."""
        name = _name(kernel)
        for one in candidates[len(self._offered.get(name, ())) :]:
            self._offered.setdefault(name, []).append(str(one))
            self._computations.setdefault(name, []).append(_computation(kernel, one))
        return candidates[min(self.number, len(candidates) - 1)]

    def names(self) -> list[str]:
        """Return what each number stands for; autotuners with fewer configurations repeat their last."""
        return [
            "; ".join(f"{kernel}: {name}" for kernel, name in zip(self._offered, names, strict=True))
            for names in _together(self._offered)
        ] or [""]

    def different(self) -> list[int]:
        """Return the numbers whose configurations differ from earlier ones in more than warps and stages."""
        rows = _together(self._computations) or [()]
        return [number for number, row in enumerate(rows) if row not in rows[:number]]


def _together(offered: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    count = max(map(len, offered.values()), default=0)
    return [tuple(column[min(number, len(column) - 1)] for column in offered.values()) for number in range(count)]


def _name(kernel: Any) -> str:
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):  # heuristics have none
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", ""))


def _computation(kernel: Any, configuration: Any) -> Any:
    """Return what decides a kernel's results; heuristics and some kernels read the number of warps."""
    plain = isinstance(kernel, JITFunction) and not kernel.is_gluon() and not _OPTIONS & set(kernel.arg_names)
    return str(configuration.kwargs) if plain else str(configuration), configuration.pre_hook
