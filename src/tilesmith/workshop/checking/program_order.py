"""Programs in reverse order: a GPU promises no order, so a right kernel gives the same result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilesmith.lab.inspect.tracing.effects import every_program
from tilesmith.toolchain.interpreter import Launched, handing_over, interpret


class _LastProgramFirst:
    """A performer that runs the programs of every launch from the last to the first."""

    def launch(self, launched: Launched) -> None:
        if not launched.warmup:
            programs = list(every_program(launched.grid))[::-1]
            interpret(launched.kernel, launched.grid, launched.arguments, programs=programs)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


@contextmanager
def last_program_first() -> Iterator[None]:
    """Interpret the launches inside the context, the programs of each from the last to the first."""
    with handing_over(_LastProgramFirst()):
        yield
