"""Find the line of a kernel on which a stored NaN was computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilesmith.spec import Inputs, called
from tilesmith.toolchain.interpreter import Observer, Operation, OutOfBounds, interpreting


class _NanObserver(Observer):
    """Follows every program until one stores a NaN."""

    def __init__(self) -> None:
        self._operations: dict[int, Operation] = {}  # of the current program, by number
        self.origin: tuple[str, int] | None = None

    def follows(self, program: Any) -> bool:
        return self.origin is None

    def operation(self, operation: Operation) -> None:
        if operation.number == 0:
            self._operations.clear()
        self._operations[operation.number] = operation
        if operation.kind == "store" and operation.nan and self.origin is None:
            self.origin = self._made(operation)

    def out_of_bounds(self, error: OutOfBounds) -> None:
        """Continue: another stage reports the access."""

    def _made(self, store: Operation) -> tuple[str, int] | None:
        """Return the place of the first operation that made a NaN, among those that the store uses."""
        used, waiting = set[int](), list(store.inputs)
        while waiting:
            number = waiting.pop()
            operation = self._operations.get(number)
            if operation is not None and number not in used and operation.nan:
                used.add(number)
                waiting += operation.inputs
        made = [self._operations[number] for number in sorted(used) if self._operations[number].nan == "made"]
        return (made[0].file, made[0].line) if made else None


def nan_origin(function: Callable[..., Any], inputs: Inputs) -> tuple[str, int] | None:
    """Call the function in the interpreter. Return file and line where its first stored NaN was computed."""
    observer = _NanObserver()
    with interpreting(observer):
        called(function, inputs)
    return observer.origin
