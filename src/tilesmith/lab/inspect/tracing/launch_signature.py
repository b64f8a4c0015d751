"""When two launches are alike, and what of a launch can be written down."""

from __future__ import annotations

from typing import Any

from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.toolchain.interpreter import Launched


def _looks_like(value: Any, constant: bool) -> Any:
    found = list(tensors_in(value))
    if found:
        return tuple((tuple(one.shape), one.stride(), one.dtype, one.data_ptr() % 16) for one in found)
    if constant or isinstance(value, bool):
        return value
    # Of a number that is not a constant, what the compiler looks at: a seed makes no other kernel.
    return (value == 1, value % 16 == 0) if isinstance(value, int) else type(value).__name__


def look_of(launched: Launched) -> Any:
    """Two launches of one look are the same kernel doing the same, on other numbers."""
    return (
        launched.kernel.fn,
        launched.grid,
        tuple(
            str(_looks_like(launched.arguments[parameter.name], parameter.is_constexpr))
            for parameter in launched.kernel.params
        ),
        tuple(sorted((name, str(value)) for name, value in launched.options.items())),
    )


def compile_look(launched: Launched) -> Any:
    """What a compilation depends on."""
    return (launched.kernel, look_of(launched)[2:])


def is_plain(value: Any) -> bool:
    """Whether a value says by itself all that there is to know."""
    return value is None or isinstance(value, int | float | str | bool)


def constants_of(launched: Launched) -> dict[str, Any]:
    """The compile-time constants of a launch, by name."""
    found = {}
    for parameter in launched.kernel.params:
        if parameter.is_constexpr:
            value = launched.arguments[parameter.name]
            value = getattr(value, "value", value)
            found[parameter.name] = value if is_plain(value) else str(value)
    return found
