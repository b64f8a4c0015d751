"""Undefined values of one program: where they come from, and which results they reach.

A masked load without `other` leaves its masked lanes undefined; memory that nobody wrote is undefined too. Each
operation passes undefined lanes on, lane by lane. A lane that `tl.where` discards, or that a store masks off, does no
harm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.observing.observers import Lanes, Origin, Undefined
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.program import ProgramBuilder

_MOVING = ("reshape", "expand_dims", "broadcast", "splat", "unsplat", "trans", "join", "split", "cat")
_STORING = ("store", "masked_store", "descriptor_store", "descriptor_scatter", "atomic_store")
_ABSORBING = {"and": 0, "mul": 0, "or": True}
_KEEPING = frozenset(  # a zero may leave the other operand as it is
    {"fadd", "add", "fsub", "sub", "maxnumf", "maximumf", "minnumf", "minimumf", "maxsi", "maxui", "minsi", "minui"}
)


def undefined_of(handle: Any) -> Undefined | None:
    """Return the undefined lanes of a block; None where all are defined."""
    return getattr(handle, "undefined", None)


class UndefinedLanes:
    """Follows undefined lanes through the operations of one program, from the first undefined load on.

    A context: at its end the builder is as it was at the first undefined load.
    """

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder
        self._before: dict[str, Any] | None = None
        self._inside = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def is_following(self) -> bool:
        return self._before is not None

    def mark(self, handle: Any, lanes: Lanes, cause: str, argument: str | None) -> None:
        """Mark lanes of a loaded block as undefined, and follow them from now on."""
        origin = Origin(cause, *kernel_position(sys._getframe(1)), argument)
        handle.undefined = Undefined(np.broadcast_to(lanes, handle.data.shape), origin)
        if self._before is None:
            names = self._builder.operation_names
            self._before = {name: vars(self._builder).get(name) for name in names}
            for name in names:
                wrapped = partial(self._call, name.removeprefix("create_"), getattr(self._builder, name))
                setattr(self._builder, name, wrapped)

    def end(self) -> None:
        """Stop following at the end of a program."""
        for name, value in (self._before or {}).items():
            if value is None:
                delattr(self._builder, name)
            else:
                setattr(self._builder, name, value)
        self._before = None

    def reduced(self, inputs: Sequence[Any], results: Sequence[Any], axis: int | None) -> None:
        """Pass undefined lanes through a reduction.

        A result of undefined lanes only is undefined. A result that some of them would change, even as zeros, is wrong.
        Other results are right where the hardware fills such lanes with zeros: shown to the observers, and defined.
        """
        found = [one for one in map(undefined_of, inputs) if one is not None]
        if not found:
            return
        lanes = np.logical_or.reduce([one.lanes for one in found])
        zeros = np.logical_or.reduce([one.lanes & ~one.kept for one in found])
        nothing_else = np.asarray(lanes.all(axis=axis))
        mixed = zeros & ~lanes.all(axis=axis, keepdims=True)
        harmful = any(one.harmful for one in found) or _changes(inputs[0], results[0], mixed, axis)
        some = np.asarray(lanes.any(axis=axis)) & ~nothing_else
        ends = lanes & ~lanes.all(axis=axis, keepdims=True)
        if some.any() and not harmful:
            for origin, part in _parts(found):
                if np.any(part & ends):
                    self._show(Undefined(part, origin), some)
        reached = nothing_else | some if harmful else nothing_else
        kept = np.asarray(~zeros.all(axis=axis)) & (not harmful)
        if reached.any():
            for handle in results:
                fitted, right = (np.broadcast_to(_fitted(one, handle), handle.data.shape) for one in (reached, kept))
                whole = lanes & ~ends
                parts = [
                    (origin, np.broadcast_to(_fitted(np.asarray((part & where).any(axis=axis)), handle), fitted.shape))
                    for where in (mixed, whole)
                    for origin, part in _parts(found)
                ]
                handle.undefined = _made(fitted, parts, found, harmful and bool(some.any()), right)

    def scanned(self, inputs: Sequence[Any], results: Sequence[Any], axis: int, reverse: bool) -> None:
        """Pass undefined lanes through a scan: one makes all later results undefined."""
        found = [one for one in map(undefined_of, inputs) if one is not None]
        if not found:
            return
        lanes = np.logical_or.reduce([one.lanes for one in found])
        lanes = np.flip(lanes, axis) if reverse else lanes
        lanes = np.logical_or.accumulate(lanes, axis=axis)
        lanes = np.flip(lanes, axis) if reverse else lanes
        for handle in results:
            handle.undefined = _made(lanes, _parts(found), found, any(one.harmful for one in found))

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._inside:
            return function(*arguments, **options)
        handles = [value for value in arguments if isinstance(value, TensorHandle)]
        found = [one for one in map(undefined_of, handles) if one is not None]
        if found and name in (*_STORING, "atomic_rmw"):
            self._stored(name, arguments)
        self._inside = True
        try:
            result = function(*arguments, **options)
            if found and name not in _STORING and "load" not in name and "atomic" not in name:
                self._pass_on(name, function, arguments, options, handles, found, result)
        finally:
            self._inside = False
        return result

    def _pass_on(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        options: dict[str, Any],
        handles: list[Any],
        found: list[Undefined],
        result: Any,
    ) -> None:
        results = [one for one in (result if isinstance(result, tuple | list) else (result,)) if _is_block(one)]
        if name == "dot":
            self._show_inner_ends(arguments)
        if name in _MOVING:
            masks, kept = (self._moved(function, arguments, options, of) for of in (_lanes_of, _kept_of))
        else:
            masks = [self._lanes(name, arguments, handles, one) for one in results]
            kept = [_kept(name, handles, one) for one in results]
        parts = self._parts_of(name, function, arguments, options) if len(_parts(found)) > 1 else []
        for handle, mask, right in zip(results, masks, kept, strict=True):
            if np.any(mask):
                lanes = np.broadcast_to(mask, handle.data.shape).astype(bool)
                handle.undefined = _made(lanes, parts, found, any(one.harmful for one in found), right)

    def _parts_of(
        self, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]
    ) -> list[tuple[Origin, Lanes]]:
        """Return the lanes of a result that come from each origin."""
        parts: list[tuple[Origin, Lanes]] = []
        for position, value in enumerate(arguments):
            undefined = undefined_of(value) if _is_block(value) else None
            for origin, part in undefined.by_origin() if undefined is not None else ():
                if name in _MOVING:
                    part = self._moved(function, arguments, options, partial(_lanes_if, value, part))[0]
                elif name == "dot" and position < 2:
                    part = np.asarray(part.all(axis=-1 - position, keepdims=True))
                parts.append((origin, part))
        return parts

    @staticmethod
    def _moved(
        function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any], of: Callable[[Any], Lanes]
    ) -> list[Lanes]:
        """Return the lanes that `of` gives for each block, moved like the block's values."""
        blocks = (TensorHandle(of(value), tl.int1) if _is_block(value) else value for value in arguments)
        moved = function(*blocks, **options)
        return [one.data for one in (moved if isinstance(moved, tuple) else (moved,))]

    def _show_inner_ends(self, arguments: Sequence[Any]) -> None:
        """Show operands of a dot whose inner dimension ends with undefined lanes."""
        for operand, inner in ((arguments[0], -1), (arguments[1], -2)):
            undefined = undefined_of(operand)
            if undefined is not None:
                ends = np.asarray(undefined.lanes.any(axis=inner) & ~undefined.lanes.all(axis=inner))
                if ends.any():
                    self._show(undefined, ends)

    @staticmethod
    def _lanes(name: str, arguments: Sequence[Any], handles: list[Any], result: Any) -> Lanes:
        masks = [_lanes_of(handle) for handle in handles]
        if name == "select":
            condition, left, right = masks
            return np.asarray(condition | np.where(handles[0].data, left, right), dtype=bool)
        if name in _ABSORBING and result.data.dtype.kind in "bui":
            nothing = _ABSORBING[name]
            left, right = masks
            settled = (~left & (handles[0].data == nothing)) | (~right & (handles[1].data == nothing))
            return np.asarray((left | right) & ~settled, dtype=bool)
        if name.startswith("dot"):
            # The end of the inner dimension multiplies by zeros; a row or column of its own is undefined as a whole.
            d = _lanes_of(arguments[2]) if name == "dot" else np.False_
            rows, columns = masks[0].all(axis=-1, keepdims=True), masks[1].all(axis=-2, keepdims=True)
            return np.asarray(rows | columns | d, dtype=bool)
        if name == "gather":
            taken = np.take_along_axis(np.broadcast_to(masks[0], handles[0].data.shape), handles[1].data, arguments[2])
            return taken | masks[1]
        try:
            return np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*masks)), result.data.shape)
        except ValueError:  # an operation that mixes lanes, such as a histogram
            return np.asarray(any(mask.any() for mask in masks))

    def _stored(self, name: str, arguments: Sequence[Any]) -> None:
        """Show a store of undefined lanes to the observers; lanes that the store masks off do not count."""
        value, mask = arguments[2 if name == "atomic_rmw" else 1], None
        if name in ("masked_store", "atomic_rmw", "atomic_store"):
            mask = arguments[3 if name == "atomic_rmw" else 2]
        self.used(value, np.True_ if mask is None else np.asarray(mask.data))

    def used(self, handle: Any, mask: Any = np.True_) -> None:
        """Show the observers that lanes of a block decide a result, an address or a branch."""
        undefined = undefined_of(handle)
        if undefined is not None and np.any(undefined.lanes & mask):
            self._show(undefined, undefined.lanes & mask)

    def _show(self, undefined: Undefined, lanes: Lanes) -> None:
        for origin, part in undefined.by_origin():
            shown = part & lanes if part.shape == lanes.shape else lanes
            if np.any(shown):
                for observer in self._builder.memory.observers:
                    observer.undefined(Undefined(part, origin, undefined.harmful), shown, self._builder.grid_idx)


def pass_on(builder: ProgramBuilder, inputs: Sequence[Any], result: Any) -> None:
    """Pass undefined lanes through an elementwise operation that the builder does not perform."""
    if builder.undefined.is_following:
        found = [one for one in map(undefined_of, inputs) if one is not None]
        if found:
            lanes = np.logical_or.reduce(np.broadcast_arrays(*(_lanes_of(one) for one in inputs)))
            result.undefined = _made(lanes, _parts(found), found, any(one.harmful for one in found))


def _parts(found: Sequence[Undefined]) -> list[tuple[Origin, Lanes]]:
    """Return the lanes of each origin of several blocks."""
    merged: dict[Origin, Lanes] = {}
    for one in found:
        for origin, part in one.by_origin():
            known = merged.get(origin)
            merged[origin] = part if known is None or known.shape != part.shape else known | part
    return [*merged.items()]


def _made(
    lanes: Lanes,
    parts: Sequence[tuple[Origin, Lanes]],
    found: Sequence[Undefined],
    harmful: bool,
    kept: Lanes = np.False_,  # type: ignore[assignment]  # broadcasts
) -> Undefined:
    """Return the undefined lanes of a result; `parts` are lanes of origins, `found` those of the inputs."""
    own: dict[Origin, Lanes] = {}
    for origin, part in parts:
        with suppress(ValueError):  # an operation that mixes lanes
            fitted = np.broadcast_to(part, lanes.shape) & lanes
            if fitted.any():
                own[origin] = own[origin] | fitted if origin in own else fitted
    origin = next(iter(own), found[0].origin)
    return Undefined(lanes, origin, harmful, kept, tuple(own.items()) if len(own) > 1 else ())


def _is_block(value: Any) -> bool:
    return isinstance(value, TensorHandle)


def _lanes_of(handle: Any) -> Lanes:
    undefined = undefined_of(handle)
    return np.zeros(handle.data.shape, dtype=bool) if undefined is None else undefined.lanes


def _lanes_if(own: Any, lanes: Lanes, handle: Any) -> Lanes:
    """Return these lanes for one block, none for others."""
    return lanes if handle is own else np.zeros(handle.data.shape, dtype=bool)


def _kept_of(handle: Any) -> Lanes:
    undefined = undefined_of(handle)
    return np.broadcast_to(undefined.kept if undefined is not None else np.False_, handle.data.shape)


def _kept(name: str, handles: list[Any], result: Any) -> Lanes:
    """Return the lanes of a result that are right where the hardware fills undefined lanes with zeros."""
    right = [~_lanes_of(handle) | _kept_of(handle) for handle in handles]
    try:
        if name == "select":
            return np.asarray(right[0] & np.where(handles[0].data, right[1], right[2]))
        if name.startswith("dot"):
            return np.asarray(right[2] & right[0].any(axis=-1, keepdims=True) & right[1].any(axis=-2, keepdims=True))
        if name in _KEEPING:
            (left, left_right), (other, other_right) = ((one.data, ok) for one, ok in zip(handles, right, strict=True))
            one_stays = (left_right & (result.data == left)) | (other_right & (result.data == other))
            return np.asarray(one_stays | (left_right & other_right))
        return np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*right)), result.data.shape)
    except (ValueError, IndexError):  # an operation that mixes lanes, such as a histogram
        return np.broadcast_to(np.False_, result.data.shape)


def _fitted(lanes: Lanes, handle: Any) -> Lanes:
    return lanes.reshape(handle.data.shape) if lanes.size == handle.data.size else lanes


def _changes(before: Any, after: Any, lanes: Lanes, axis: int | None) -> bool:
    """Return whether undefined lanes, filled with zeros, change a sum or an extreme."""
    from tilesmith.toolchain.interpreter.numerics import values_of

    values, result = values_of(before), values_of(after)
    if values.dtype.kind not in "fiu":
        return False
    defined = np.where(lanes, 0, values)
    if not np.array_equal(defined, values, equal_nan=values.dtype.kind == "f"):
        return True  # the zeros have become something else, such as exp(0) = 1
    for extreme, least in ((np.max, -np.inf), (np.min, np.inf)):
        if values.dtype.kind == "f" and np.array_equal(_shaped(extreme(values, axis=axis), result), result):
            without = _shaped(extreme(np.where(lanes, least, values), axis=axis), result)
            return bool(np.any((without != result) & np.isfinite(without)))
    return False


def _shaped(values: Any, like: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    return array.reshape(like.shape) if array.size == like.size else array
