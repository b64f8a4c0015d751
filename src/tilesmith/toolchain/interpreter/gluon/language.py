"""`gluon.language` as interpreted kernels see it: every function of its modules bound to the machine.

A function that has the same meaning in `triton.language` is taken from there. A function that neither knows raises
`UnknownOperation` with its name when a kernel calls it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import tensor_memory_descriptor
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.interpreter.gluon.copies import Copies
from tilesmith.toolchain.interpreter.gluon.machine import Machine, plain
from tilesmith.toolchain.interpreter.gluon.products import Products
from tilesmith.toolchain.interpreter.gluon.values import ANY_LAYOUT, Values
from tilesmith.toolchain.interpreter.language import Language
from tilesmith.toolchain.interpreter.ptx import UnknownOperation

Operation = Callable[..., Any]
_ABSENT = object()


class GluonLanguage:
    """The attributes of Gluon's modules and classes to replace while a Gluon kernel runs."""

    def __init__(self, language: Language) -> None:
        self.machine = Machine(language.builder, language.semantic)
        self._rewritten = language.rewritten
        values = Values(self.machine)
        self._copies, products = Copies(self.machine, values), Products(self.machine)
        self.descriptor = self._copies.make_descriptor
        self._known = {**values.functions(), **self._copies.functions(), **products.functions()}
        self._replacements = language.replacements
        self._changes: list[tuple[Any, str, Any]] = []
        for module in _modules():
            self._change_functions(module)
        for owner, methods in (
            (gl.shared_memory_descriptor, values.methods()),
            (tensor_memory_descriptor, products.methods()),
        ):
            self._change_methods(owner, methods)
        self._changes.append((tl.block_type, "layout", ANY_LAYOUT))
        self._changes.append((JITFunction, "__get__", _bound))
        self._changes.append((JITFunction, "__call__", self._called))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Redirect calls of `gluon.language` to here, inside the context."""
        before = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in self._changes]
        try:
            for owner, name, value in self._changes:
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in before:
                if value is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)

    @property
    def _called(self) -> Operation:
        """Return the call of a @gluon.jit function: constants arrive as plain values, as those of a launch do."""
        rewritten = self._rewritten

        def call(function: Any, *arguments: Any, **options: Any) -> Any:
            named = {name: plain(value) for name, value in options.items()}
            return rewritten(function)(*(plain(value) for value in arguments), **named)

        return call

    def _change_functions(self, module: ModuleType) -> None:
        for name, member in [*vars(module).items()]:
            if name.startswith("__") or (inspect.isclass(member) and member is not tl.static_range):
                continue
            meaning = self._meaning(module, name, member)
            if meaning is not None:
                self._changes.append((module, name, meaning))
                self._replacements.setdefault(id(member), meaning)

    def _meaning(self, module: ModuleType, name: str, member: Any) -> Operation | None:
        """Return what a kernel calls under this name; None where the name stays as it is."""
        room = module.__name__.rpartition(".")[2]
        known = self._known.get(f"{room}.{name}") or self._known.get(name)
        if known is not None and (tl.core.is_builtin(member) or isinstance(member, JITFunction)):
            return known
        if member is tl.static_range or (tl.core.is_builtin(member) and hasattr(tl, name)):
            return _from_triton(name)
        if tl.core.is_builtin(member) and member.__module__ == tl.core.__name__:  # to_tensor, in releases before 3.7
            return partial(member, _semantic=self.machine.semantic)
        if tl.core.is_builtin(member) and room != "_semantic":
            return _unknown(f"{room}.{name}" if room in ("tma", "mbarrier", "async_copy", "clc", "cluster") else name)
        return None

    def _change_methods(self, owner: type, methods: dict[str, Operation]) -> None:
        for name in dir(owner):
            member = inspect.getattr_static(owner, name)
            if name in methods:
                method = _plain_function(methods[name])
                self._changes.append((owner, name, method))
                self._replacements[id(member)] = method
            elif tl.core.is_builtin(member):
                self._changes.append((owner, name, _unknown(f"{owner.__name__}.{name}")))


def _modules() -> Iterator[ModuleType]:
    """Return Gluon's language and the modules inside it."""
    yield gl
    for found in pkgutil.walk_packages(gl.__path__, f"{gl.__name__}."):
        yield importlib.import_module(found.name)


def _from_triton(name: str) -> Operation:
    """Return the function of `triton.language`, looked up at the call: by then it is the interpreter's."""

    def call(*arguments: Any, **options: Any) -> Any:
        options.pop("layout", None)
        return getattr(tl, name)(*arguments, **options)

    return call


def _plain_function(bound_method: Operation) -> Operation:
    """Return a plain function for a bound method: as a class attribute it gets the instance first."""
    return lambda *arguments, **options: bound_method(*arguments, **options)


def _unknown(name: str) -> Operation:
    def call(*arguments: Any, **options: Any) -> Any:
        raise UnknownOperation(name)

    return call


def _bound(function: Any, owner: Any, kind: Any = None) -> Any:
    """Bind methods of aggregates, which are @gluon.jit functions."""
    return MethodType(function, owner) if isinstance(owner, tl.core.base_value) else function
