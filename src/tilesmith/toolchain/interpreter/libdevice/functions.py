"""What each function of libdevice computes, by name.

Most functions compute in double precision; the caller rounds to the type of the result. `_rn`, `_rd`, `_ru` and `_rz`
round to nearest, down, up and toward zero, once, from a wider format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Function = Callable[..., Array]

_POINTS = 2048  # of the trapezoidal rule for Bessel functions: exact to double precision for arguments below 1,000
_TORCH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmax", "fmin", "fmod", "hypot", "lgamma"),
    *("log", "log10", "log1p", "log2", "pow", "rsqrt", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_ROUNDED: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "fma": lambda x, y, z: x * y + z,
}
_TO_WHOLE: dict[str, Function] = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}
_WHOLE = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}
_REAL = {"float": np.float32, "double": np.float64}
_VIEWS = {
    "float_as_int": np.int32,
    "float_as_uint": np.uint32,
    "int_as_float": np.float32,
    "uint_as_float": np.float32,
    "double_as_longlong": np.int64,
    "longlong_as_double": np.float64,
}


def _in_torch(name: str, module: Any = torch) -> Function:
    function = getattr(module, name)
    return lambda *values: function(*map(torch.from_numpy, values)).numpy()


def _wide(function: Function) -> Function:
    """Return a function that computes real arguments in double precision."""
    return lambda *values: function(*(one.astype(np.float64) if one.dtype.kind == "f" else one for one in values))


def _narrowed(wide: Array, dtype: Any, mode: str) -> Array:
    """Return wide numbers rounded to a narrower format in a direction."""
    near = wide.astype(dtype)
    if mode == "rn":
        return near
    down, up = (np.nextafter(near, dtype(end)) for end in (-np.inf, np.inf))
    low, high = np.where(near > wide, down, near), np.where(near < wide, up, near)
    return np.where(wide < 0, high, low) if mode == "rz" else low if mode == "rd" else high


def _rounding(function: Function, mode: str) -> Function:
    def call(*values: Array) -> Array:
        dtype = values[0].dtype.type
        wider = np.float64 if dtype is np.float32 else np.longdouble
        with np.errstate(all="ignore"):
            return _narrowed(function(*(one.astype(wider) for one in values)), dtype, mode)

    return call


def _to_whole(values: Array, mode: str, dtype: Any) -> Array:
    """Return numbers rounded to integers; numbers out of range become the nearest integer in range, NaN becomes 0."""
    limits = np.iinfo(dtype)
    rounded = np.nan_to_num(_TO_WHOLE[mode](values.astype(np.longdouble)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = (rounded > limits.min) & (rounded < limits.max)
    ends = np.where(rounded <= limits.min, dtype(limits.min), dtype(limits.max))
    return np.where(inside, np.where(inside, rounded, 0).astype(dtype), ends)


def _converted(source: str, target: str, mode: str) -> Function:
    if target in _WHOLE:
        return partial(_to_whole, mode=mode, dtype=_WHOLE[target])
    own: Any = _WHOLE.get(source)
    return lambda values: _narrowed(
        (values if own is None else values.astype(own)).astype(np.longdouble), _REAL[target], mode
    )


def _of_integers(function: Callable[..., int]) -> Function:
    """Return a function of unsigned integers, with the number of bits as last argument, for arrays."""

    def call(*values: Array) -> Array:
        bits = 8 * values[0].dtype.itemsize
        each = np.vectorize(lambda *ones: function(*(int(one) % 2**bits for one in ones), bits) % 2**bits, otypes=["O"])
        return np.asarray(each(*values)).astype(f"uint{bits}")

    return call


def _signed(value: int, bits: int) -> int:
    return value - 2**bits if value >> (bits - 1) else value


def _high_product(first: Array, second: Array) -> Array:
    bits = 8 * first.dtype.itemsize
    each = np.vectorize(lambda x, y: (int(x) * int(y)) >> bits, otypes=["O"])
    return np.asarray(each(first, second)).astype(first.dtype)


def _permuted_bytes(x: int, y: int, selector: int, bits: int) -> int:
    both = (y << 32) | x
    picked = (selector >> (4 * place) for place in range(4))
    each = ((both >> (8 * (one & 7)) & 0xFF, one & 8) for one in picked)
    return sum((0xFF * (byte >> 7) if sign else byte) << (8 * place) for place, (byte, sign) in enumerate(each))


def _low_24(value: int) -> int:
    return _signed(value & 0xFFFFFF, 24)


def _half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return whole + np.copysign(np.where(np.abs(x - whole) >= 0.5, 1.0, 0.0), x)


def _binary_exponent(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where(x == 0, -np.inf, np.where(np.isfinite(x), np.frexp(x)[1] - 1.0, np.abs(x)))


def _ieee_remainder(x: Array, y: Array) -> Array:
    each = np.vectorize(lambda a, b: math.remainder(a, b) if b and math.isfinite(a) else math.nan, otypes=[float])
    return np.asarray(each(x, y))


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except (OverflowError, ValueError):
        return math.nan if x < 0 else math.inf


def _bessel_j(order: Array, x: Array) -> Array:
    angles = np.pi * (np.arange(_POINTS) + 0.5) / _POINTS
    return np.asarray(np.cos(np.multiply.outer(order, angles) - np.multiply.outer(x, np.sin(angles))).mean(-1))


def _bessel_y(order: Array, x: Array) -> Array:
    before, now = (_in_torch(name, torch.special)(x) for name in ("bessel_y0", "bessel_y1"))
    found = np.where(order == 0, before, now)
    with np.errstate(all="ignore"):
        for step in range(1, int(order.max(initial=0))):
            before, now = now, 2 * step / x * now - before
            found = np.where(order == step + 1, now, found)
    return found


def _words(high: Array, low: Array) -> Array:
    words: Array = (high.astype(np.uint32).astype(np.uint64) << np.uint64(32)) | low.astype(np.uint32)
    return words.view(np.float64)


def _length(*values: Array) -> Array:
    return np.asarray(np.sqrt(sum(one * one for one in values)))


_REAL_FUNCTIONS: dict[str, Function] = {
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "erfcinv": lambda x: -_in_torch("ndtri", torch.special)(x / 2) / math.sqrt(2),
    "exp10": lambda x: np.power(10.0, x),
    "fast_exp10f": lambda x: np.power(10.0, x),
    "fast_log10f": np.log10,
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.maximum(x - y, 0)),
    "ilogb": lambda x: _to_whole(_binary_exponent(x), "rz", np.int32),
    "logb": _binary_exponent,
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int32)),
    "scalbn": lambda x, n: np.ldexp(x, n.astype(np.int32)),
    "llrint": lambda x: _to_whole(x, "rn", np.int64),
    "llround": lambda x: _to_whole(_half_away(x), "rz", np.int64),
    "round": _half_away,
    "norm3d": _length,
    "norm4d": _length,
    "rnorm3d": lambda *values: 1 / _length(*values),
    "rnorm4d": lambda *values: 1 / _length(*values),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "remainder": _ieee_remainder,
    "saturatef": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0.0, 1.0),
    "tgamma": lambda x: np.asarray(np.vectorize(_gamma, otypes=[float])(x)),
    "jn": _bessel_j,
    "yn": _bessel_y,
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    **{
        name: _in_torch(special, torch.special)
        for name, special in {
            "cyl_bessel_i0": "i0",
            "cyl_bessel_i1": "i1",
            "erfcx": "erfcx",
            "normcdf": "ndtr",
            "normcdfinv": "ndtri",
            **{name: f"bessel_{name}" for name in ("j0", "j1", "y0", "y1")},
        }.items()
    },
}
FUNCTIONS: dict[str, Function] = {
    **{name: _in_torch(name) for name in _TORCH},
    **{f"fast_{name}f": _in_torch(name) for name in ("cos", "exp", "log2", "log", "pow", "sin", "tan", "tanh")},
    **{name: _wide(function) for name, function in _REAL_FUNCTIONS.items()},
    **{f"{name}_{mode}": _rounding(_ROUNDED[name], mode) for name, mode in product(_ROUNDED, _TO_WHOLE)},
    **{
        f"{source}2{target}_{mode}": _converted(source, target, mode)
        for source, target, mode in product({**_WHOLE, **_REAL}, {**_WHOLE, **_REAL}, _TO_WHOLE)
    },
    **{name: partial(lambda values, to: values.view(to), to=to) for name, to in _VIEWS.items()},
    "abs": np.abs,
    "fast_dividef": np.divide,
    "finitef": np.isfinite,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "nearbyint": np.rint,
    "rint": np.rint,
    "nextafter": np.nextafter,
    "fma": _rounding(_ROUNDED["fma"], "rn"),
    "rcp64h": lambda x: (np.reciprocal(x).view(np.uint64) & np.uint64(0xFFFFFFFF << 32)).view(np.float64),
    "hiloint2double": _words,
    "double2hiint": lambda x: (x.view(np.uint64) >> np.uint64(32)).astype(np.uint32),
    "double2loint": lambda x: x.view(np.uint64).astype(np.uint32),
    "brev": _of_integers(lambda x, bits: int(f"{x:0{bits}b}"[::-1], 2)),
    "clz": _of_integers(lambda x, bits: bits - x.bit_length()),
    "ffs": _of_integers(lambda x, bits: (x & -x).bit_length()),
    "popc": _of_integers(lambda x, bits: x.bit_count()),
    "byte_perm": _of_integers(_permuted_bytes),
    "mul24": _of_integers(lambda x, y, bits: _low_24(x) * _low_24(y)),
    "mulhi": _high_product,
    "hadd": lambda x, y: ((x.astype(np.int64) + y) >> 1).astype(x.dtype),
    "rhadd": lambda x, y: ((x.astype(np.int64) + y + 1) >> 1).astype(x.dtype),
    "sad": lambda x, y, z: np.abs(x.astype(np.int64) - y) + z,
}
