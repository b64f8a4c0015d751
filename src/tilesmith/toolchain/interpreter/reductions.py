"""`tl.reduce` and `tl.associative_scan` for the interpreter: slices at a time, with any combine function.

The stock interpreter calls the combine function for each element. Here it is called on blocks, about log2(n) times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.numerics import handle_of, is_narrow, values_of
from tilesmith.toolchain.interpreter.values.other_order import is_other_order
from tilesmith.toolchain.interpreter.values.undefined import UndefinedLanes
from tilesmith.toolchain.versions import sums_become_tf32_dots

Array = NDArray[Any]
SMALLEST_SIDE = 16  # rows and columns of a product, below which Triton leaves a sum alone
Combine = Callable[[list[Array], list[Array]], list[Array]]


class AmbiguousTruth(ValueError):
    """A kernel uses a block as a condition."""


def tensor_of(data: Array, scalar: Any) -> Any:
    """Return raw data as a Triton tensor; a scalar where it has no dimensions."""
    if data.ndim == 0:
        return tl.tensor(TensorHandle(data.reshape(1), scalar), scalar)
    return tl.tensor(TensorHandle(data, scalar), tl.block_type(scalar, list(data.shape)))


class Reductions:
    """Reduce and scan for one semantic."""

    def __init__(self, semantic: TritonSemantic) -> None:
        self._semantic = semantic

    def reduce(self, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **unused: Any) -> Any:
        """Compute `tl.reduce`."""
        if isinstance(input, tl.tensor):
            return self.reduce((input,), axis, combine_fn, keep_dims)[0]
        recorder = self._semantic.builder.recorder
        if recorder is None:
            return self._reduce(input, axis, combine_fn, keep_dims)
        results: list[Any] = []

        def reduced(*handles: Any) -> list[Any]:
            made = self._reduce([_tensor(handle) for handle in handles], axis, combine_fn, keep_dims)
            results.extend(() if results else made)  # the second call is in float64
            return [result.handle for result in made]

        recorder.call("reduce", reduced, *(tensor.handle for tensor in input))
        return tuple(results)

    def _reduce(self, input: Sequence[Any], axis: Any, combine_fn: Any, keep_dims: Any) -> tuple[Any, ...]:
        shape = input[0].handle.data.shape
        axis = _from_front(axis, len(shape))
        scalars = [tensor.dtype for tensor in input]
        with self._unrecorded():
            dot = self._as_dot(input[0].handle, axis, combine_fn)
            reduced = dot or self._reduced([tensor.handle.data for tensor in input], scalars, axis, combine_fn)
        if _plain(keep_dims):
            kept = [1 if axis in (None, dimension) else length for dimension, length in enumerate(shape)]
            reduced = [data.reshape(kept) for data in reduced]
        results = tuple(tensor_of(data, scalar) for data, scalar in zip(reduced, scalars, strict=True))
        following: UndefinedLanes = self._semantic.builder.undefined
        self._semantic.builder.threads_wait(certain=False)
        again = None if dot else lambda rows: self._reduced(rows, scalars, axis, combine_fn, programs=1)
        self._lose_path(input, results, again)
        if following.is_following:
            following.reduced([one.handle for one in input], [one.handle for one in results], axis)
        return results

    def _reduced(
        self, data: Sequence[Array], scalars: Sequence[Any], axis: int | None, combine_fn: Any, programs: int = 0
    ) -> list[Array]:
        """Return raw data reduced along an axis. With `programs=1` the first dimension counts programs."""
        slices = [_axis_first(one, axis, programs) for one in data]
        reduced = _known_reduction(combine_fn, slices, scalars)
        return _by_halves(slices, self._combine(combine_fn, scalars)) if reduced is None else reduced

    def _as_dot(self, product: Any, axis: Any, combine_fn: Any) -> list[Array] | None:
        """Return the sum of products that Triton compiles to a dot of tf32; None for all other reductions.

        Triton does not look which dimension the sum is over, so a wrong sum of a cube becomes that dot too.
        """
        left, right = getattr(product, "factors", None) or (None, None)
        if left is None or right is None or product.data.ndim != 3:
            return None
        (a, a_axis), (b, b_axis), sides = left, right, product.data.shape[::2]
        is_dot = (a_axis, b_axis) == (2, 0) and product.dtype.scalar == tl.float32 and min(sides) >= SMALLEST_SIDE
        has_shape = axis is not None and np.delete(product.data.shape, axis).tolist() == list(sides)
        if not is_dot or not has_shape or not sums_become_tf32_dots() or not self._adds(combine_fn):
            return None
        zeros = TensorHandle(np.zeros(sides, np.float32), tl.float32)
        return [self._semantic.builder.dot_of_sum(a, b, zeros).data]

    def _adds(self, combine_fn: Any) -> bool:
        """Return whether a combine function adds, by a kernel's own name or by that of `tl.sum`."""
        if combine_fn is tl.standard._sum_combine:
            return True
        left = np.geomspace(1.0, 3.0, 64, dtype=np.float32)
        right = -left[::-1] / 7
        (made,) = self._combine(combine_fn, [tl.float32])([left], [right])
        return np.array_equal(made, left + right)

    def associative_scan(self, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **unused: Any) -> Any:
        """Compute `tl.associative_scan`."""
        if isinstance(input, tl.tensor):
            return self.associative_scan((input,), axis, combine_fn, reverse)[0]
        recorder = self._semantic.builder.recorder
        if recorder is None:
            return self._scan(input, axis, combine_fn, reverse)
        results: list[Any] = []

        def scanned(*handles: Any) -> list[Any]:
            made = self._scan([_tensor(handle) for handle in handles], axis, combine_fn, reverse)
            results.extend(() if results else made)  # the second call is in float64
            return [result.handle for result in made]

        recorder.call("scan", scanned, *(tensor.handle for tensor in input))
        return tuple(results)

    def _scan(self, input: Sequence[Any], axis: Any, combine_fn: Any, reverse: Any) -> tuple[Any, ...]:
        axis = _from_front(axis, input[0].handle.data.ndim)
        direction = slice(None, None, -1 if _plain(reverse) else 1)
        scalars = [tensor.dtype for tensor in input]

        def scan(data: Sequence[Array], programs: int = 0) -> list[Array]:
            slices = [_axis_first(one, axis, programs)[direction] for one in data]
            scanned = _by_doubling(slices, self._combine(combine_fn, scalars))
            last = (axis or 0) + programs
            return [np.ascontiguousarray(np.moveaxis(one[direction], 0, last)) for one in scanned]

        with self._unrecorded():
            restored = scan([tensor.handle.data for tensor in input])
        results = tuple(tensor_of(data, scalar) for data, scalar in zip(restored, scalars, strict=True))
        following: UndefinedLanes = self._semantic.builder.undefined
        self._lose_path(input, results, lambda rows: scan(rows, programs=1))
        if following.is_following:
            handles = [one.handle for one in input], [one.handle for one in results]
            following.scanned(*handles, axis or 0, bool(_plain(reverse)))
        return results

    def _lose_path(
        self, input: Sequence[Any], results: Sequence[Any], function: Callable[[Sequence[Array]], list[Array]] | None
    ) -> None:
        path = self._semantic.builder.path
        if path is not None:
            path.lose([one.handle for one in input], [one.handle for one in results], "a reduction", function)

    def _unrecorded(self) -> AbstractContextManager[None]:
        """Return a context in which the operations of a combine function are not recorded."""
        path = self._semantic.builder.path
        return nullcontext() if path is None else path.paused()

    def _combine(self, combine_fn: Any, scalars: Sequence[Any]) -> Combine:
        def call(left: list[Array], right: list[Array]) -> list[Array]:
            sides = zip((*left, *right), (*scalars, *scalars), strict=True)
            results = combine_fn(*(tensor_of(data, scalar) for data, scalar in sides))
            results = results if isinstance(results, tuple | tl.tuple) else (results,)
            return [
                self._block(result, scalar, data.shape)
                for result, scalar, data in zip(results, scalars, left, strict=True)
            ]

        def combine(left: list[Array], right: list[Array]) -> list[Array]:
            try:
                return call(left, right)
            except AmbiguousTruth:
                return lane_by_lane(left, right)

        def lane_by_lane(left: list[Array], right: list[Array]) -> list[Array]:
            """Reduce element by element, for a combine function that branches on its values."""
            results = [np.empty_like(data) for data in left]
            for lane in np.ndindex(left[0].shape):
                combined = call([np.asarray(data[lane]) for data in left], [np.asarray(data[lane]) for data in right])
                for result, value in zip(results, combined, strict=True):
                    result[lane] = value
            return results

        return combine

    def _block(self, result: Any, scalar: Any, shape: tuple[int, ...]) -> Array:
        """Return the result of a combine function as a block; a constant becomes every element."""
        data: Array = self._semantic.cast(self._semantic.to_tensor(result), scalar).handle.data
        return np.broadcast_to(data, shape) if shape else data.reshape(())


def _tensor(handle: Any) -> Any:
    scalar, shape = handle.dtype.scalar, list(handle.data.shape)
    return tl.tensor(handle, tl.block_type(scalar, shape) if shape else scalar)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _from_front(axis: Any, rank: int) -> int | None:
    axis = _plain(axis)
    if axis is not None and not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a block of {rank} dimensions")
    return None if axis is None else axis % rank


def _axis_first(data: Array, axis: int | None, programs: int = 0) -> Array:
    if axis is None:
        data, axis = data.reshape(*data.shape[:programs], -1), 0
    return np.moveaxis(data, axis + programs, 0)


def _by_halves(slices: list[Array], combine: Combine) -> list[Array]:
    """Combine neighbours until one is left, which keeps their order. Triton's axes are powers of two.

    The other order combines the second half with the first: on a GPU each lane puts its own value before that of a lane
    half a warp away, whichever comes first.
    """
    while len(slices[0]) > 1:
        half = len(slices[0]) // 2
        left, right = (slice(half, None), slice(half)) if is_other_order() else (slice(0, None, 2), slice(1, None, 2))
        slices = combine([data[left] for data in slices], [data[right] for data in slices])
    return [np.asarray(data[0]) for data in slices]


def _by_doubling(slices: list[Array], combine: Combine) -> list[Array]:
    """Combine each element with those 1, 2, 4, … before it. Blocks stay powers of two, so the ends wrap."""
    if is_other_order():
        return _by_pairs(slices, combine)
    length, distance = len(slices[0]), 1
    while distance < length:
        combined = combine([np.roll(data, distance, axis=0) for data in slices], slices)
        slices = [np.concatenate([old[:distance], new[distance:]]) for old, new in zip(slices, combined, strict=True)]
        distance *= 2
    return slices


def _by_pairs(slices: list[Array], combine: Combine) -> list[Array]:
    """Scan the pairs of neighbours, and combine each first one of a pair with the pairs before it."""
    if len(slices[0]) == 1:
        return slices
    pairs = _by_pairs(combine([data[0::2] for data in slices], [data[1::2] for data in slices]), combine)
    firsts = combine([np.roll(data, 1, axis=0) for data in pairs], [data[0::2] for data in slices])
    scanned = [np.empty_like(data) for data in slices]
    for made, data, first, pair in zip(scanned, slices, firsts, pairs, strict=True):
        made[0::2], made[1::2] = first, pair
        made[0] = data[0]
    return scanned


def _known_reduction(combine_fn: Any, slices: list[Array], scalars: Sequence[Any]) -> list[Array] | None:
    """Return the result by numpy where the combine function is Triton's and numpy gives the same; else None."""
    values, scalar = slices[0], scalars[0]
    if combine_fn is tl.standard._sum_combine:
        # Hardware rounds a sum of 16-bit floats after each addition; combining by halves does the same.
        if is_narrow(scalar.name) or values.dtype == np.float16:
            return None
        last = np.ascontiguousarray(np.moveaxis(values, 0, -1))  # numpy adds pairwise only along contiguous memory
        return [np.asarray(last.sum(axis=-1, dtype=values.dtype))]
    for extreme, names in _EXTREMES.items():
        if any(combine_fn is getattr(tl.standard, name) for name in names):
            return _extreme(slices, scalar, extreme)
    return None


def _extreme(slices: list[Array], scalar: Any, extreme: np.ufunc) -> list[Array]:
    values = values_of(TensorHandle(slices[0], scalar))
    best = np.asarray(extreme.reduce(values, axis=0))
    results = [handle_of(best, scalar).data]
    if len(slices) == 2:
        # Comparisons with NaN are false, so the index is that of the first value equal to the best.
        first = np.argmax((values == best) | np.isnan(best), axis=0)
        results.append(np.take_along_axis(slices[1], np.expand_dims(first, 0), axis=0)[0])
    return results


# Not the fast variants: of equal values they take any, so their own code decides which.
_EXTREMES = {
    np.fmax: ("_elementwise_max", "_argmax_combine_tie_break_left"),
    np.fmin: ("_elementwise_min", "_argmin_combine_tie_break_left"),
}
