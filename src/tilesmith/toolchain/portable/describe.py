"""A kernel as its text, with the values of the global names that it uses."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import ConstexprFunction

from tilesmith.toolchain.interpreter.rewriting import as_jit_function
from tilesmith.toolchain.portable.values import NotPortable, encode, is_known_module

MOST_KERNELS = 256

Names = dict[str, Any]
"""The names in a text; each with those of its attributes, likewise: {"np": {"inf": {}}}."""


class Kernels:
    """The kernels that a program has launched, each described once; device functions that they call are kernels too."""

    def __init__(self) -> None:
        self.descriptions: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}
        self._being_described: set[Any] = set()
        self._used: dict[str, Names] = {}  # by a kernel's text

    def number(self, kernel: Any) -> int:
        """Return the number of a kernel's description. Raises NotPortable."""
        if not isinstance(kernel, ConstexprFunction):
            kernel = as_jit_function(getattr(kernel, "fn", kernel) if not hasattr(kernel, "src") else kernel)
        text = (kernel.fn, kernel.src)
        if text in self._being_described:
            raise NotPortable(f"kernel {kernel.__name__}, which calls itself")
        self._being_described.add(text)
        try:
            used = self._names_in(kernel.src)
            names = {name: self._named(name, value, used[name]) for name, value in _globals_of(kernel.fn, used)}
        finally:
            self._being_described.discard(text)
        key = (*text, json.dumps(names, sort_keys=True))  # a kernel may find other global values in a later launch
        if key not in self._numbers:
            if len(self._numbers) >= MOST_KERNELS:
                raise NotPortable(f"more than {MOST_KERNELS} kernels")
            self._numbers[key] = len(self.descriptions)
            self.descriptions.append(self._described(kernel, names))
        return self._numbers[key]

    def encode(self, value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
        """Return a launch's argument as JSON."""
        return encode(value, tensor, self.number)

    def _names_in(self, text: str) -> Names:
        if text not in self._used:
            found: Names = {}
            self._used[text] = found
            for node in ast.walk(ast.parse(text)):
                inner: Names = found
                for part in _dotted(node):
                    inner = inner.setdefault(part, {})
        return self._used[text]

    def _described(self, kernel: Any, names: dict[str, Any]) -> dict[str, Any]:
        function = kernel.fn
        lines = kernel.raw_src
        start = next((number for number, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
        return {
            "name": kernel.__name__,
            "text": kernel.src,
            "file": function.__code__.co_filename,
            "line": int(kernel.starting_line_number) + start,
            "gluon": bool(getattr(kernel, "is_gluon", lambda: False)()),
            "constexpr": isinstance(kernel, ConstexprFunction),
            "options": {
                "do_not_specialize": list(getattr(kernel, "do_not_specialize", None) or ()),
                "do_not_specialize_on_alignment": list(getattr(kernel, "do_not_specialize_on_alignment", None) or ()),
                "debug": bool(getattr(kernel, "debug", False)),
                "noinline": bool(getattr(kernel, "noinline", False)),
            },
            "names": names,
        }

    def _named(self, name: str, value: Any, used: Names) -> Any:
        if isinstance(value, ModuleType) and not is_known_module(value):
            return {"values": self._values_of(name, value, used)}

        def no_tensor(tensor: torch.Tensor) -> Any:
            raise NotPortable(f"global tensor {name}")

        return self.encode(value, no_tensor)

    def _values_of(self, name: str, module: ModuleType, used: Names) -> Mapping[str, Any]:
        """Return what a kernel uses of a module that is not Triton's."""
        found = {}
        for attribute, inner in sorted(used.items()):
            try:
                found[attribute] = self._named(f"{name}.{attribute}", getattr(module, attribute), inner)
            except (AttributeError, NotPortable) as error:
                raise NotPortable(f"{name}.{attribute} of module {module.__name__}") from error
        return found


def _dotted(node: ast.AST) -> list[str]:
    """Return the parts of a dotted name; nothing for other nodes."""
    if isinstance(node, ast.Name):
        return [node.id]
    owner = _dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*owner, node.attr] if owner else []  # type: ignore[attr-defined]  # only attributes have owners


def _globals_of(function: Any, used: Names) -> list[tuple[str, Any]]:
    """Return those of the names that are global or enclosing, with their values; the others are local."""
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = []
    for name in sorted(used):
        if name in enclosing:
            found.append((name, enclosing[name].cell_contents))
        elif name in function.__globals__ and name not in function.__code__.co_varnames:
            found.append((name, _constant_if_annotated(function, name)))
    return found


def _constant_if_annotated(function: Any, name: str) -> Any:
    """Return a global value; a compile-time constant where the module annotates it so."""
    value = function.__globals__[name]
    annotation = function.__globals__.get("__annotations__", {}).get(name)
    is_constant = annotation is tl.constexpr or str(annotation).endswith("constexpr")
    return tl.constexpr(value) if is_constant and not isinstance(value, tl.constexpr) else value
