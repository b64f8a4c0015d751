"""Signatures: which launches are alike, and which compilations."""

from __future__ import annotations

from typing import Any

from tilesmith.lab.inspect.running.tensor_tracker import tensors_in
from tilesmith.toolchain.interpreter import Launched


def _value_signature(value: Any, constant: bool) -> Any:
    found = list(tensors_in(value))
    if found:
        blocks = getattr(value, "block_shape", None)  # of a tensor descriptor
        return blocks, *((tuple(one.shape), one.stride(), one.dtype, one.data_ptr() % 16) for one in found)
    if constant or isinstance(value, bool):
        return value
    # Of a run-time integer only what the compiler specialises on: another seed makes no other kernel.
    return (value == 1, value % 16 == 0) if isinstance(value, int) else type(value).__name__


def launch_signature(launched: Launched) -> Any:
    """Return a key that equal launches share: same kernel, grid, shapes, strides, constants and options."""
    return (
        launched.kernel.fn,
        launched.grid,
        tuple(
            str(_value_signature(launched.arguments[parameter.name], parameter.is_constexpr))
            for parameter in launched.kernel.params
        ),
        tuple(sorted((name, str(value)) for name, value in launched.options.items())),
    )


def compile_signature(launched: Launched) -> Any:
    """Return a key of everything that a compilation depends on."""
    return (launched.kernel, launch_signature(launched)[2:])


def is_plain(value: Any) -> bool:
    """Return whether JSON can hold the value as it is."""
    return value is None or isinstance(value, int | float | str | bool)


def constants_of(launched: Launched) -> dict[str, Any]:
    """Return the compile-time constants of a launch by name."""
    found = {}
    for parameter in launched.kernel.params:
        if parameter.is_constexpr:
            value = launched.arguments[parameter.name]
            value = getattr(value, "value", value)
            found[parameter.name] = value if is_plain(value) else str(value)
    return found
