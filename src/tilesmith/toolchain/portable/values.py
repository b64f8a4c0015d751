"""Arguments of a launch, and global values of a kernel, as JSON and back.

A value is a number, a string or None; or an object with one key that names its kind.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental.gluon.language import _layouts as layouts
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime.jit import ConstexprFunction, JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

Encoded = Any
_TYPES = {value.name: value for value in vars(tl).values() if isinstance(value, tl.dtype)}
# Triton has functions that compile C, write files and start programs; a kernel may use its language alone.
_MODULES = ("math", "triton.language", "triton.experimental.gluon.language", "triton.experimental.gluon.nvidia",
            "triton.experimental.gluon.amd")  # fmt: skip
_ON_THE_WAY = ("triton", "triton.experimental", "triton.experimental.gluon")
_VALUES = "Values that a kernel uses of a module that is not Triton's."
_OTHERS = (triton.cdiv, triton.next_power_of_2, tl.PropagateNan)


class NotPortable(Exception):
    """A value that only its own process can use. The message names the value."""


def encode(value: Any, tensor: Callable[[torch.Tensor], Any], kernel: Callable[[Any], int]) -> Encoded:
    """Return a value as JSON. `tensor` and `kernel` return JSON for a tensor and a number for a kernel."""

    def inner(one: Any) -> Encoded:
        return encode(one, tensor, kernel)

    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value) in (bool, int, float, str, type(None)) else _plain(value)
    if isinstance(value, torch.Tensor):
        return {"tensor": tensor(value)}
    if isinstance(value, TensorWrapper):
        return {"wrapped": [inner(value.base), inner(value.dtype)]}
    if isinstance(value, TensorDescriptor | GluonDescriptor):
        return _encoded_descriptor(value, inner)
    if isinstance(value, tl.constexpr):
        return {"constexpr": inner(value.value)}
    if isinstance(value, tl.pointer_type):
        return {"pointer": inner(value.element_ty)}
    if isinstance(value, tl.dtype):
        return {"type": value.name}
    if isinstance(value, tuple | list | tl.tuple):
        names = list(getattr(value, "_fields", ()))
        return {"list" if isinstance(value, list) else "tuple": [inner(one) for one in value], "fields": names}
    if isinstance(value, JITFunction) or (hasattr(value, "fn") and hasattr(value, "arg_names")):
        return {"kernel": kernel(value)}
    if isinstance(value, ConstexprFunction) and value.__module__.split(".")[0] != "triton":
        return {"kernel": kernel(value)}
    if is_dataclass(value) and type(value).__module__ == layouts.__name__:
        return {
            "layout": type(value).__name__,
            "values": {one.name: inner(getattr(value, one.name)) for one in fields(value)},
        }
    return _encoded_reference(value)


def _plain(value: Any) -> Encoded:
    """Return a subclass of a plain type as that type, such as an enum of integers."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise NotPortable(f"{type(value).__name__} {value!r}")


def _encoded_descriptor(value: Any, inner: Callable[[Any], Encoded]) -> Encoded:
    parts = {"base": inner(value.base), "shape": list(value.shape), "strides": list(value.strides)}
    layout = inner(value.layout) if isinstance(value, GluonDescriptor) else None
    return {"descriptor": parts, "block": list(value.block_shape), "padding": value.padding, "layout": layout}


def _encoded_reference(value: Any) -> Encoded:
    """Return a module, or a function of Triton's, by its name."""
    if isinstance(value, ModuleType):
        if is_known_module(value):
            return {"module": value.__name__}
        raise NotPortable(f"module {value.__name__}")
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if module.split(".")[0] == "triton" and name and "<" not in name:
        return {"reference": [module, name]}
    raise NotPortable(f"{type(value).__name__} {str(value)[:60]}")


def is_known_module(module: ModuleType) -> bool:
    """Whether a kernel may use a module: those of Triton's language, and `math`."""
    return module.__name__ in _ON_THE_WAY or is_of_the_language(module.__name__)


def holds_values(module: ModuleType) -> bool:
    """Whether a module was made here and holds nothing but values that a kernel may use."""
    return module.__doc__ is _VALUES


def is_of_the_language(module: str) -> bool:
    """Whether the values that a module defines belong to Triton's language."""
    return any(module == one or module.startswith(f"{one}.") for one in _MODULES)


def is_in_the_language(value: Any) -> bool:
    """Whether a kernel may use a value of a module: what Triton's language defines, and numbers."""
    if isinstance(value, int | float | str | tl.dtype | tl.constexpr | tl.PropagateNan):
        return True
    home = getattr(value, "__module__", None) or type(value).__module__
    return is_of_the_language(home) or any(value is one for one in _OTHERS)


class Decoder:
    """Turns JSON back into values. `tensor` makes a tensor; `kernel` returns the kernel with a number."""

    def __init__(self, tensor: Callable[[Any], torch.Tensor], kernel: Callable[[int], Any]) -> None:
        self._tensor = tensor
        self._kernel = kernel

    def value(self, encoded: Encoded) -> Any:
        """Return the value. Raises NotPortable for anything that `encode` does not write."""
        if not isinstance(encoded, Mapping):
            if encoded is None or isinstance(encoded, bool | int | float | str):
                return encoded
            raise NotPortable(f"{type(encoded).__name__} in place of a value")
        kind = next(iter(encoded), "")
        decode = getattr(self, f"_{kind}", None)
        if decode is None or kind in ("tensor", "kernel"):
            return self._looked_up(kind, encoded)
        try:
            return decode(encoded)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotPortable(f"a damaged {kind}: {error}") from None

    def _looked_up(self, kind: str, encoded: Mapping[str, Any]) -> Any:
        if kind == "tensor":
            return self._tensor(encoded["tensor"])
        if kind == "kernel":
            return self._kernel(encoded["kernel"])
        raise NotPortable(f"a value of unknown kind {kind[:20]!r}")

    def _wrapped(self, encoded: Any) -> Any:
        base, dtype = encoded["wrapped"]
        return TensorWrapper(self.value(base), self.value(dtype))

    def _descriptor(self, encoded: Any) -> Any:
        parts = encoded["descriptor"]
        base = self.value(parts["base"])
        made = [[int(one) for one in sizes] for sizes in (parts["shape"], parts["strides"], encoded["block"])]
        if encoded["layout"] is not None:
            return GluonDescriptor(base, *made, self.value(encoded["layout"]), padding=str(encoded["padding"]))
        return TensorDescriptor(base, *made, padding=str(encoded["padding"]))

    def _constexpr(self, encoded: Any) -> Any:
        return tl.constexpr(self.value(encoded["constexpr"]))

    def _pointer(self, encoded: Any) -> Any:
        return tl.pointer_type(self.value(encoded["pointer"]))

    def _type(self, encoded: Any) -> Any:
        return _TYPES[encoded["type"]]

    def _tuple(self, encoded: Any) -> Any:
        values = [self.value(one) for one in encoded["tuple"]]
        names = [str(name) for name in encoded["fields"]]
        if names and all(name.isidentifier() and not name.startswith("_") for name in names):
            return namedtuple("Named", names)(*values)  # the fields are known now only
        return tuple(values)

    def _list(self, encoded: Any) -> Any:
        return [self.value(one) for one in encoded["list"]]

    def _layout(self, encoded: Any) -> Any:
        made: Any = getattr(layouts, encoded["layout"])
        known = is_dataclass(made) and made.__module__ == layouts.__name__
        if not known:
            raise NotPortable(f"layout {encoded['layout']!r}")
        return made(**{name: self.value(one) for name, one in encoded["values"].items()})

    def _values(self, encoded: Any) -> Any:
        module = ModuleType("values", _VALUES)
        for name, value in encoded["values"].items():
            if not str(name).isidentifier() or name.startswith("_"):
                raise NotPortable(f"the attribute {name}")
            setattr(module, name, self.value(value))
        return module

    def _module(self, encoded: Any) -> Any:
        return _resolved(encoded["module"])

    def _reference(self, encoded: Any) -> Any:
        module, name = encoded["reference"]
        value: Any = _resolved(module)
        for part in str(name).split("."):
            if part.startswith("_"):
                raise NotPortable(f"{module}.{name}")
            value = getattr(value, part)
        if not is_in_the_language(value):
            raise NotPortable(f"{module}.{name}")
        return value


def _resolved(name: str) -> ModuleType:
    """Return a module that a kernel may use, one attribute after another: nothing is imported by name."""
    roots: dict[str, ModuleType] = {"triton": triton, "math": math}
    first, *rest = str(name).split(".")
    found: Any = roots.get(first)
    for part in rest:
        found = getattr(found, part, None)
    if not isinstance(found, ModuleType) or not is_known_module(found):
        raise NotPortable(f"module {name}")
    return found
