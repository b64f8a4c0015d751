"""A launch under an autotuner, which runs a kernel several times in the first call before the run that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from tilesmith.lab.inspect.tracing.shadow_memory import named_tensors
from tilesmith.toolchain.interpreter import Launched, Observer, OutOfBounds


class _Unobserved(Observer):
    """Lets faults pass, which the run that counts shows again."""

    def out_of_bounds(self, error: OutOfBounds) -> None:
        pass


class TunerTrial:
    """One run of a launch before the run that counts. Between the two, the autotuner resets and restores tensors."""

    def __init__(
        self, launched: Launched, tuned: Mapping[str, Sequence[str]], interpret: Callable[[Launched, Observer], None]
    ) -> None:
        tensors = dict(named_tensors(launched.arguments))
        before = {name: one.clone() for name, one in tensors.items()}
        interpret(launched, _Unobserved())
        self._kernel = launched.kernel.__name__
        self._changed = [(name, one, one.clone()) for name, one in tensors.items() if not _same(one, before[name])]
        for name, one in tensors.items():
            if name in tuned["reset_to_zero"]:
                one.zero_()
            elif name in tuned["restore_value"]:
                one.copy_(before[name])

    def faults(self) -> Iterator[dict[str, str]]:
        """Yield what the second run, which counts, changed again."""
        for name, now, before in self._changed:
            if not _same(now, before):
                yield {
                    "kind": "autotuned-state",
                    "message": f"{self._kernel} changes {name} again when it runs again, as under an autotuner it does",
                    "advice": f'Pass reset_to_zero=["{name}"] or restore_value=["{name}"] to triton.autotune.',
                }


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same values; NaN equals itself."""
    return bool(((one == other) | ((one != one) & (other != other))).all())
