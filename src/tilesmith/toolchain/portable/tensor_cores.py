"""Products of float32 as tensor cores compute them: `tl.dot` rounds its operands to tf32 unless the kernel says more.

The interpreter multiplies exactly by default. Inside `rounding_products` a kernel that leaves `input_precision` at
Triton's default has the error that it has on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.patches import Builder

_DROPPED_BITS = 13  # float32 has 23 bits of fraction, tf32 has 10


def rounded_to_tf32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest tf32 numbers; ties away from zero, as the hardware's conversion does."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32(1 << (_DROPPED_BITS - 1))
    kept = (bits + half) & np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF)
    return np.where(np.isfinite(values), kept.view(np.float32), values)


@contextmanager
def rounding_products() -> Iterator[None]:
    """Round the float32 operands of `tl.dot` where its input precision is tf32."""
    stock: Any = Builder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if input_precision.name.lower() == "tf32":
            a, b = (
                TensorHandle(rounded_to_tf32(one.data), one.dtype) if one.data.dtype == np.float32 else one
                for one in (a, b)
            )
        return stock(builder, a, b, d, input_precision, *rest)

    Builder.create_dot = create_dot  # type: ignore[method-assign,assignment]  # restored below
    try:
        yield
    finally:
        Builder.create_dot = stock  # type: ignore[method-assign]
