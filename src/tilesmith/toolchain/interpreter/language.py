"""`triton.language` as interpreted kernels see it: the same names, bound to a builder that computes on numpy arrays.

The changes are computed once, and in place only while a kernel runs. So compiling between runs is not affected.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl

# Triton imports this lazily. During an interpreted run it would keep the changed functions for ever.
from triton.compiler import code_generator  # noqa: F401
from triton.language import semantic
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle, _patch_lang_core, _patch_lang_tensor
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.interpreter import libdevice
from tilesmith.toolchain.interpreter.loops import Loop
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.observing.positions import is_user_code
from tilesmith.toolchain.interpreter.patches import Builder
from tilesmith.toolchain.interpreter.reductions import AmbiguousTruth, Reductions
from tilesmith.toolchain.interpreter.rewriting import Rewriter
from tilesmith.toolchain.interpreter.shapes import Semantic, Shapes, make_handle, quick_operators
from tilesmith.toolchain.interpreter.tiles import materialize_pointers
from tilesmith.toolchain.interpreter.together.all_programs import PathRecorder

_NO_CONSTANTS = frozenset({tl.tensor, tl.dtype, int, float, bool, str, type(None)})
_SEMANTIC = semantic.__file__


class Language:
    """The builder, its semantic, and the attributes of `triton.language` to replace."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.semantic = Semantic(self.builder)
        self._changes: dict[int, tuple[Any, dict[str, Any]]] = {}  # by the owner's id: the owner, its new attributes
        self.replacements: dict[int, Callable[..., Any]] = {}
        self.by_name: dict[tuple[str, str], Callable[..., Any]] = {}  # of libdevice, which libraries execute again
        self._rewriter = Rewriter(self.semantic, partial(Loop, self.builder), self.replacements, self.by_name)
        self.rewritten = self._rewriter.rewritten
        self._change_builtins()
        self._change_structure()
        self._change_functions_of_numbers()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Redirect calls of `triton.language` and of other @triton.jit functions to here, while a kernel runs."""
        owners = [(owner, vars(owner), changes) for owner, changes in self._changes.values()]
        before = [{name: names[name] for name in changes if name in names} for _, names, changes in owners]
        try:
            for owner, _, changes in owners:
                _set_attributes(owner, changes)
            yield
        finally:
            for (owner, names, changes), values in zip(owners, before, strict=True):
                _set_attributes(owner, values)
                for name in names.keys() & changes.keys() - values.keys():
                    delattr(owner, name)

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        """Record a change; the last one for an attribute counts. Triton's patching functions use this name."""
        self._changes.setdefault(id(owner), (owner, {}))[1][name] = value
        # A kernel that imported a function by name holds the original; the replacement is found by identity.
        if hasattr(owner, name):
            original = getattr(owner, name)
            self.replacements[id(original)] = value
            if str(getattr(original, "__module__", "")).startswith("triton.language.extra"):
                self.by_name[original.__module__, name] = value

    def _change_builtins(self) -> None:
        for owner in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
            for name in dir(owner):
                member = inspect.getattr_static(owner, name)
                if tl.core.is_builtin(member):
                    self.set_attr(owner, name, self._with_semantic(member))

    def _with_semantic(self, member: Callable[..., Any]) -> Callable[..., Any]:
        bound = self.semantic
        function = getattr(member, "__wrapped__", member)  # the wrapper only checks for arguments that are passed here

        def call(*arguments: Any, **options: Any) -> Any:
            options["_semantic"] = bound
            return function(*arguments, **options)

        return call

    def _quick_cast(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Return `tl.tensor.to` without the front end for a plain dtype."""

        def to(tensor: Any, dtype: Any, *arguments: Any, **options: Any) -> Any:
            if type(dtype) is not tl.dtype or arguments or options:
                return usual(tensor, dtype, *arguments, **options)
            return self.semantic.cast(tensor, dtype)

        return to

    def _change_structure(self) -> None:
        """Collect the stock interpreter's changes, and then corrections of those."""
        _patch_lang_tensor(tl.tensor, self)
        for owner in (tl, tl.core):
            _patch_lang_core(owner, self)
            self.set_attr(owner, "range", self._range)
        self.set_attr(stock, "_get_np_dtype", numpy_dtype)
        self.set_attr(tl.core.dtype, "to_ir", lambda dtype, builder: dtype)
        # The stock property makes a handle of its own, which loses what is known of the values.
        self.set_attr(tl.tensor, "T", property(lambda tensor: self.semantic.permute(tensor, (1, 0))))
        self.set_attr(tl.tensor, "__index__", lambda tensor: _number(tensor, self.builder))
        self.set_attr(tl.tensor, "__bool__", lambda tensor: _truth(tensor, self.builder))
        for name in ("multiple_of", "max_contiguous", "max_constancy"):
            for owner in (tl, tl.core):
                self.set_attr(owner, name, _plain_function(getattr(self.builder.hints, name)))
        for owner, constructor in zip((tl.block_type, tl.tensor), Shapes().constructors(), strict=True):
            self.set_attr(owner, "__init__", constructor)
        self.set_attr(TensorHandle, "__init__", make_handle)
        of_tensors = self._changes[id(tl.tensor)][1]
        for name, operator in quick_operators(self.semantic, of_tensors.__getitem__):
            of_tensors[name] = operator
        self.set_attr(tl.tensor, "to", self._quick_cast(of_tensors["to"]))
        self.set_attr(stock.TensorDescHandle, "materialize_pointers", materialize_pointers)
        self.set_attr(tl.core, "_unwrap_if_constexpr", _unwrapper(tl.core._unwrap_if_constexpr))
        for owner in (JITFunction, stock.InterpretedFunction):
            self.set_attr(owner, "__call__", lambda function, *a, **k: self.rewritten(function)(*a, **k))
        for name, member in vars(tl.tensor).items():
            if isinstance(member, JITFunction):
                self.set_attr(tl.tensor, name, _method(member))
        reductions = Reductions(self.semantic)
        for name in ("reduce", "associative_scan"):
            for owner in (tl, tl.core, tl.tensor):
                self.set_attr(owner, name, _plain_function(getattr(reductions, name)))

    def _change_functions_of_numbers(self) -> None:
        """Return replacements for Python names that Triton's compiler reads differently, and for libdevice."""
        self.replacements[id(builtins.range)] = self._range
        self.replacements[id(builtins.min)] = partial(
            _least, builtins.min, partial(tl.minimum, _semantic=self.semantic)
        )
        self.replacements[id(builtins.max)] = partial(
            _least, builtins.max, partial(tl.maximum, _semantic=self.semantic)
        )
        for owner, name, function in libdevice.functions(self.semantic):
            self.set_attr(owner, name, function)

    def _range(self, first: Any, last: Any = None, step: Any = None, **hints: Any) -> Iterator[Any]:
        """`range` whose variable is a tensor, as in compiled kernels: it overflows like one and has its methods."""
        start, stop = (0, first) if last is None else (first, last)
        bounds = [self.semantic.to_tensor(bound) for bound in (start, stop, 1 if step is None else step)]
        scalar = max((bound.dtype for bound in bounds), key=lambda dtype: dtype.primitive_bitwidth)
        plain = [int(bound.handle.data.item()) for bound in bounds]
        numbers = builtins.range(*plain)
        followed = self.builder.path is not None and self._follow_range(self.builder.path, bounds, plain)
        for number, value in enumerate(numbers):
            if followed:
                yield (bounds[0] + bounds[2] * number).to(scalar)
            else:
                yield tl.tensor(TensorHandle(np.array([value], dtype=numpy_dtype(scalar)), scalar), scalar)

    @staticmethod
    def _follow_range(path: PathRecorder, bounds: Sequence[Any], plain: Sequence[int]) -> bool:
        """Note on what a loop's path depends: its length if it counts up, else its bounds. Return whether its length.

        The programs of a persistent kernel start their loops at different numbers and share a path.
        """
        start, stop, step = bounds
        path.branch(step.handle, plain[2])
        if plain[2] < 1 or getattr(start.handle, "node", None) is None:
            path.branch(start.handle, plain[0])
            path.branch(stop.handle, plain[1])
            return False
        length = len(builtins.range(*plain))
        path.branch((start < stop).handle, length > 0)
        if length:
            path.branch(((stop - start + (plain[2] - 1)) // plain[2]).handle, length)
        return True


def _set_attributes(owner: Any, values: dict[str, Any]) -> None:
    """Set attributes of a module or a class. Modules hold most of them, and take them all at once."""
    if isinstance(owner, ModuleType):
        vars(owner).update(values)
        return
    for name, value in values.items():
        setattr(owner, name, value)


def _unwrapper(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Triton's function that unwraps constants, with a shortcut for most of what is none."""
    return lambda value: value if type(value) in _NO_CONSTANTS else original(value)


def _plain_function(bound_method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function for a bound method: as a class attribute it gets the instance first."""
    return lambda *arguments, **options: bound_method(*arguments, **options)


def _method(function: JITFunction) -> Callable[..., Any]:
    return lambda tensor, *arguments, **options: function(tensor, *arguments, **options)


def _least(choose: Callable[..., Any], combine: Callable[[Any, Any], Any], *values: Any) -> Any:
    """Return Python's min or max; for tensors, elementwise."""
    if not any(isinstance(value, tl.tensor) for value in values):
        return choose(*values)
    if len(values) < 2:
        raise TypeError(f"{choose.__name__} of a block requires at least 2 values")
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result


def _number(tensor: Any, builder: Builder) -> int:
    number = int(tensor.handle.data.squeeze())
    if builder.path is not None:
        builder.path.branch(tensor.handle, number)
    return number


def _truth(tensor: Any, builder: Builder) -> bool:
    """Return the truth of a scalar. Triton's own code also tests tensors, only to distinguish them from None."""
    data, caller = tensor.handle.data, sys._getframe(2).f_code.co_filename
    if caller == _SEMANTIC:
        return True  # a load tests `other`, and an `other` of one lane may be 0
    if data.size == 1:
        builder.undefined.used(tensor.handle)
        truth = bool(data.item())
        if builder.path is not None:
            builder.path.branch(tensor.handle, truth)
        return truth
    if is_user_code(caller):
        raise AmbiguousTruth(f"a block of shape {list(data.shape)} has no single truth value; use tl.where, & or |")
    return True
