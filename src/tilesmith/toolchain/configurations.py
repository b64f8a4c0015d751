"""Take an autotuner's configurations by their number: times in the interpreter mean nothing, so each one is tried."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from triton.runtime.jit import JITFunction

_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


class Configurations:
    """Chooses the configuration with one number, and remembers what each autotuned kernel offers.

    Numbers count the configurations of a kernel in the order in which launches offer them: pruning leaves others for
    other sizes. `is_pruned` says whether a launch was without the configuration, and took its first one.
    """

    def __init__(self, number: int = 0) -> None:
        self._offered: dict[CodeType, dict[Any, Any]] = {}  # by kernel: what each configuration computes
        self.take(number)

    def take(self, number: int) -> None:
        """Choose the configuration with this number from now on."""
        self._number = number
        self.is_pruned = False

    def chosen(self, candidates: Sequence[Any], kernel: Any) -> Any:
        """Return one of an autotuner's configurations."""
        keyed = {(str(one), _hook(one)): one for one in candidates}
        offered = self._offered.setdefault(_code(kernel), {})
        for key, one in keyed.items():
            offered.setdefault(key, _computation(kernel, one))
        wanted = list(offered)[min(self._number, len(offered) - 1)]
        self.is_pruned |= wanted not in keyed
        return keyed.get(wanted, candidates[0])

    def names(self) -> list[str]:
        """Return what each number stands for; autotuners with fewer configurations repeat their last."""
        rows = _together([[f"{code.co_name}: {name}" for name, _ in one] for code, one in self._offered.items()])
        return ["; ".join(row) for row in rows] or [""]

    def different(self) -> list[int]:
        """Return the numbers whose configurations differ from earlier ones in more than warps and stages."""
        rows = _together([list(one.values()) for one in self._offered.values()]) or [()]
        return [number for number, row in enumerate(rows) if row not in rows[:number]]


def _together(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    count = max(map(len, columns), default=0)
    return [tuple(column[min(number, len(column) - 1)] for column in columns) for number in range(count)]


def _code(kernel: Any) -> CodeType:
    """Return the code of a kernel, the same for a kernel that is defined again in each call."""
    while hasattr(kernel, "fn"):  # heuristics wrap it
        kernel = kernel.fn
    code: CodeType = kernel.__code__
    return code


def _computation(kernel: Any, configuration: Any) -> Any:
    """Return what decides a kernel's results; heuristics and some kernels read the number of warps."""
    plain = isinstance(kernel, JITFunction) and not kernel.is_gluon() and not _OPTIONS & set(kernel.arg_names)
    return str(configuration.kwargs) if plain else str(configuration), _hook(configuration)


def _hook(configuration: Any) -> Any:
    """Return what tells one hook from another, the same for a lambda that is made again in each call."""
    return getattr(configuration.pre_hook, "__code__", configuration.pre_hook)
