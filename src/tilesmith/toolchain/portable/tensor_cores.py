"""Products of float32 without the rounding to tf32, which `tl.dot` does unless the kernel says more.

The interpreter rounds as tensor cores do. Inside `exact_products` it does not: for rules that allow tf32, whose error
is then nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton._C.libtriton import ir

from tilesmith.toolchain.interpreter.patches import Builder


@contextmanager
def exact_products() -> Iterator[None]:
    """Multiply float32 exactly where the input precision of `tl.dot` is tf32."""
    stock: Any = Builder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        is_tf32 = input_precision.name.lower() == "tf32"
        return stock(builder, a, b, d, ir.INPUT_PRECISION.IEEE if is_tf32 else input_precision, *rest)

    Builder.create_dot = create_dot  # type: ignore[method-assign,assignment]  # restored below
    try:
        yield
    finally:
        Builder.create_dot = stock  # type: ignore[method-assign]
