"""Triton's formats in numpy, also those that numpy lacks: bfloat16 and the 8-bit floats, as arrays of their bits.

`widen` returns the exact float32 values of such bits. `narrow` rounds float32 values to the nearest, ties to even.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

FloatArray = NDArray[np.float32]
BitArray = NDArray[Any]

BFLOAT16 = "bf16"
_E2M1 = np.array([sign * size for sign in (1, -1) for size in (0.0, 0.5, 1, 1.5, 2, 3, 4, 6)], dtype=np.float32)
_E2M1_PAIRS = np.stack([_E2M1[np.arange(256) & 0xF], _E2M1[np.arange(256) >> 4]], axis=-1).view(np.uint64)  # by byte
_FLOAT8 = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}


def is_narrow(format_name: str) -> bool:
    """Whether a Triton format is one that numpy lacks."""
    return format_name == BFLOAT16 or format_name in _FLOAT8


def widen(bits: BitArray, format_name: str) -> FloatArray:
    """Return the float32 values of bits. This is exact: float32 holds every value of a narrow format."""
    if format_name == BFLOAT16:
        shifted: NDArray[np.uint32] = bits.astype(np.uint32) << np.uint32(16)
        return shifted.view(np.float32)
    values: FloatArray = _float8_values(format_name)[bits]
    return values


def values_of(handle: Any) -> NDArray[Any]:
    """Return the numbers that a handle of Triton's interpreter holds."""
    format_name = handle.dtype.scalar.name
    data: NDArray[Any] = handle.data
    return widen(data, format_name) if is_narrow(format_name) else data


def handle_of(values: NDArray[Any], scalar: Any, *, toward_zero: bool = False) -> Any:
    """Return a handle of numbers rounded to a scalar type of Triton."""
    if is_narrow(scalar.name):
        return TensorHandle(narrow(values, scalar.name, toward_zero=toward_zero), scalar)
    rounded = converted(values, numpy_dtype(scalar))
    if toward_zero:
        away = np.abs(rounded) > np.abs(values)
        rounded = np.where(away, np.nextafter(rounded, rounded.dtype.type(0)), rounded)
    return TensorHandle(rounded, scalar)


def elementwise(op: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]], lhs: Any, rhs: Any) -> Any:
    """Return the handle of a binary operation on the numbers of two handles."""
    left, right, scalar = lhs.data, rhs.data, lhs.dtype.scalar
    if left.dtype.kind in "fi" and right.dtype.kind in "fi":  # no bits of a narrow format
        output = op(left, right)
        if output.dtype == left.dtype and output.itemsize * 8 == scalar.primitive_bitwidth:
            return TensorHandle(output, scalar)
    elif left.dtype.kind == right.dtype.kind == "b":
        # An int1 wraps like every integer; numpy saturates True + True and rejects True - True.
        return TensorHandle((op(left.astype(np.int8), right.astype(np.int8)) & 1).astype(np.bool_), tl.int1)
    else:
        output = op(values_of(lhs), values_of(rhs))
    return TensorHandle(output, tl.int1) if output.dtype.kind == "b" else handle_of(output, scalar)


def scaled_operand(values: NDArray[Any], scale: Any, format_name: str, packs_k: bool) -> FloatArray:
    """Return the float32 values of an operand [rows, K] of `tl.dot_scaled`.

    `scale` is a handle [rows, K / group] of e4m3 floats or e8m0 exponents, or None. A byte of e2m1 has two values:
    neighbours along K with `packs_k`, else along the rows; the lower half comes first.
    """
    if format_name == "E2M1":
        *batch, rows, columns = values.shape
        # Two floats as one integer: numpy takes a fifth of the time of a table of pairs.
        pairs = np.take(_E2M1_PAIRS, values).view(np.float32).reshape(*values.shape, 2)
        if packs_k:
            values = pairs.reshape(*batch, rows, 2 * columns)
        else:
            values = np.swapaxes(pairs, -1, -2).reshape(*batch, 2 * rows, columns)
    wide: FloatArray = values.astype(np.float32, copy=False)
    if scale is None:
        return wide
    factors = values_of(scale)
    if factors.dtype.kind != "f":
        exponents = factors.view(np.uint8).astype(np.int32)
        factors = np.where(exponents == 255, np.nan, np.ldexp(np.float32(1), exponents - 127))
    groups = wide.reshape(*wide.shape[:-1], factors.shape[-1], -1)  # a view
    scaled: FloatArray = groups * factors.astype(np.float32)[..., None]
    return scaled.reshape(*scaled.shape[:-2], -1)


def multiply_add(left: NDArray[Any], right: NDArray[Any], addend: NDArray[Any]) -> NDArray[Any]:
    """Return left · right + addend."""
    total: NDArray[Any] = np.matmul(left, right) + addend
    return total


def narrow(values: NDArray[Any], format_name: str, *, toward_zero: bool = False) -> BitArray:
    """Return the bits nearest to these values, ties to even; with `toward_zero`, truncated."""
    exact = np.ascontiguousarray(values if values.dtype == np.float32 else _to_odd(values))
    bits = _to_bfloat16(exact) if format_name == BFLOAT16 else _to_float8(exact, format_name)
    if toward_zero:
        # Bits are sign and magnitude: subtracting one gives the neighbour toward zero, also from infinity.
        away = np.abs(widen(bits, format_name)) > np.abs(exact)
        bits = bits - away.astype(bits.dtype)
    return bits.reshape(np.shape(values))


def rounded_operand(values: NDArray[Any], precision: str) -> NDArray[Any]:
    """Return a float32 operand of `tl.dot` as the tensor cores see it.

    They ignore the last 13 bits of a float32 in tf32. bf16x3 multiplies sums of two bf16. All other precisions are
    exact to single precision.
    """
    if precision == "tf32":
        bits: NDArray[np.uint32] = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        cut: NDArray[np.uint32] = bits & np.uint32(0xFFFFE000)
        return cut.view(np.float32)
    if precision == "bf16x3":
        high = widen(narrow(values, BFLOAT16), BFLOAT16)
        return high + widen(narrow(values - high, BFLOAT16), BFLOAT16)
    return values


def _to_odd(values: NDArray[Any]) -> FloatArray:
    """Round to odd in float32: truncate, and set the last bit where inexact. The second rounding is then correct."""
    wide = values.astype(np.float64)
    nearest = wide.astype(np.float32)
    bits = nearest.view(np.uint32)
    toward_zero = bits - (np.abs(nearest) > np.abs(wide))
    cut: NDArray[np.uint32] = (toward_zero | (nearest != wide)).astype(np.uint32)
    return cut.view(np.float32)


def _to_bfloat16(values: FloatArray) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last_kept) >> np.uint32(16)
    # Rounding a NaN could give infinity or change the sign; setting the quiet bit cannot.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    kept: NDArray[np.uint32] = np.where(np.isnan(values), quiet, rounded)
    return kept.astype(np.uint16)


def _to_float8(values: FloatArray, format_name: str) -> NDArray[np.uint8]:
    # NVIDIA's conversions saturate: larger values and infinity become the largest finite value.
    dtype = _FLOAT8[format_name]
    largest = torch.finfo(dtype).max
    clamped = torch.from_numpy(values.copy()).clamp(-largest, largest)
    bits: NDArray[np.uint8] = clamped.to(dtype).view(torch.uint8).numpy()
    return bits


@functools.cache
def _float8_values(format_name: str) -> FloatArray:
    every = torch.arange(256, dtype=torch.uint8).view(_FLOAT8[format_name])
    values: FloatArray = every.to(torch.float32).numpy()
    return values


def converted(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return numbers in a dtype. Floats beyond 32 or 64 bits become the nearest integer, and NaN 0, as on a GPU.

    NumPy does so on ARM, but not on x86.
    """
    wanted = np.dtype(dtype)
    if values.dtype.kind != "f" or wanted.kind not in "iu" or wanted.itemsize < 4:
        return values.astype(wanted, copy=False)
    limits = np.iinfo(wanted)
    inside = (values > limits.min) & (values < limits.max)
    ends = np.where(values > 0, limits.max, np.where(np.isnan(values), 0, limits.min)).astype(wanted)
    return np.where(inside, np.where(inside, values, 0).astype(wanted), ends)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy type of a Triton type's elements. The stock function takes a fifth of all time."""
    scalar = dtype.scalar
    if scalar.is_ptr():
        return np.dtype(np.uint64)
    if scalar.name not in _numpy_dtypes:
        _numpy_dtypes[scalar.name] = _get_np_dtype(scalar)
    return _numpy_dtypes[scalar.name]


_numpy_dtypes: dict[str, np.dtype[Any]] = {}


def broadcast(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return values of this shape. `np.broadcast_to` takes microseconds also for values that have the shape."""
    return values if values.shape == shape else np.broadcast_to(values, shape)


def filled(shape: tuple[int, ...], value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array with one value. `np.full` takes twice the time for small arrays."""
    values = np.empty(shape, dtype)
    values.fill(value.reshape(-1)[0])
    return values
